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
  threshold_index_ = RankIndex(*last);
  const uint32_t key = static_cast<uint32_t>(*last >> 32);
  has_threshold_score_ = key != 0;
  if (has_threshold_score_) threshold_score_ = KeyScore(key);
  kept_.resize(static_cast<size_t>(k_));
}

// lowest(i): the lowest index of scores i .. i + kProbe - 1. A score that only equals the threshold's must have a lower
// index, and where many are equal (a single head that answers 0 to half of the keys) those are a small part.
template <typename IndexAt, typename LowestAt>
void RunningTopK::OfferScores(const float* scores, int64_t count, IndexAt index, LowestAt lowest) {
  for (int64_t begin = 0; begin < count; begin += kProbe) {
    const int64_t end = std::min(begin + kProbe, count);
    if (has_threshold_score_ && end - begin == kProbe) {
      int higher = 0, equal = 0;
      for (int64_t i = 0; i < kProbe; ++i) {
        higher |= scores[begin + i] > threshold_score_;
        equal |= scores[begin + i] == threshold_score_;
      }
      if (higher == 0 && (equal == 0 || lowest(begin) > threshold_index_)) continue;
    }
    for (int64_t i = begin; i < end; ++i) Push(Rank(scores[i], index(i)));
  }
}

void RunningTopK::Offer(const float* scores, int64_t count, int64_t first) {
  const auto index = [first](int64_t i) { return first + i; };
  OfferScores(scores, count, index, index);
}

void RunningTopK::Offer(const float* scores, const int32_t* indices, int64_t count) {
  OfferScores(
      scores, count, [indices](int64_t i) { return int64_t{indices[i]}; },
      [indices](int64_t i) { return int64_t{*std::min_element(indices + i, indices + i + kProbe)}; });
}

void RunningTopK::Offer(std::span<const uint64_t> ranks) {
  for (const uint64_t rank : ranks) Push(rank);
}

std::span<const uint64_t> RunningTopK::Best() {
  if (static_cast<int64_t>(kept_.size()) > k_) Shrink();
  return kept_;
}

}  // namespace senko::ops
