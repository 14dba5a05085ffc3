#include "ops/select/running_topk.h"

#include <algorithm>
#include <functional>

#include "numerics/bits.h"
#include "ops/select/order_key.h"

namespace senko::ops {
namespace {

constexpr int64_t kMinSlack = 512;  // ranks taken beyond k before the set is cut back
constexpr int64_t kProbe = 16;      // scores tested at once against the threshold

// The score an order key stands for; key > 0.
float KeyScore(uint32_t key) {
  return numerics::FloatFromBits(key >= 0x80000000u ? key - 0x80000000u : 0x80000000u | (0x80000000u - key));
}

}  // namespace

void RunningTopK::Reset(int64_t k) {
  k_ = k;
  capacity_ = k == 0 ? 0 : static_cast<size_t>(k + std::max(k, kMinSlack));
  kept_.clear();
  kept_.reserve(capacity_);
  threshold_ = 0;
  has_threshold_score_ = false;
}

void RunningTopK::Push(uint64_t rank) {
  if (rank <= threshold_ || k_ == 0) return;
  if (kept_.size() == capacity_) {
    Shrink();
    if (rank <= threshold_) return;
  }
  kept_.push_back(rank);
}

void RunningTopK::Shrink() {
  if (static_cast<int64_t>(kept_.size()) < k_ || k_ == 0) return;
  const auto last = kept_.begin() + (k_ - 1);
  std::nth_element(kept_.begin(), last, kept_.end(), std::greater<>());
  threshold_ = *last - 1;  // the k-th itself must keep passing comparisons with `<=`
  const uint32_t key = static_cast<uint32_t>(*last >> 32);
  has_threshold_score_ = key != 0;
  if (has_threshold_score_) threshold_score_ = KeyScore(key);
  kept_.resize(static_cast<size_t>(k_));
}

template <typename IndexAt>
void RunningTopK::OfferScores(const float* scores, int64_t count, IndexAt index) {
  for (int64_t begin = 0; begin < count; begin += kProbe) {
    const int64_t end = std::min(begin + kProbe, count);
    if (has_threshold_score_ && end - begin == kProbe) {
      int any = 0;
      for (int64_t i = 0; i < kProbe; ++i) any |= scores[begin + i] >= threshold_score_;
      if (any == 0) continue;
    }
    for (int64_t i = begin; i < end; ++i) Push(Rank(scores[i], index(i)));
  }
}

void RunningTopK::Offer(const float* scores, int64_t count, int64_t first) {
  OfferScores(scores, count, [first](int64_t i) { return first + i; });
}

void RunningTopK::Offer(const float* scores, const int32_t* indices, int64_t count) {
  OfferScores(scores, count, [indices](int64_t i) { return int64_t{indices[i]}; });
}

void RunningTopK::Offer(std::span<const uint64_t> ranks) {
  for (const uint64_t rank : ranks) Push(rank);
}

std::span<const uint64_t> RunningTopK::Best() {
  if (static_cast<int64_t>(kept_.size()) > k_) Shrink();
  return kept_;
}

}  // namespace senko::ops
