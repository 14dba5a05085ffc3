// The k-th largest of the maxima of short chunks is a logit that k tokens reach and few more: those are gathered.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/sample/top_tokens.cc"
#include <hwy/foreach_target.h>
// after foreach_target.h, as Highway wants it
#include <algorithm>
#include <functional>

#include "ops/sample/row_scan-inl.h"
#include "ops/sample/top_tokens.h"
#include "ops/select/order_key.h"

HWY_BEFORE_NAMESPACE();
namespace senko::ops::HWY_NAMESPACE {
namespace {

void ChunkMaxima(const float* logits, int64_t chunks, float* maxima) {
  namespace v = numerics::HWY_NAMESPACE;
  namespace hn = hwy::HWY_NAMESPACE;
  const v::NativeF32 d;
  constexpr int64_t kLanes = static_cast<int64_t>(v::kNativeLanes);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const float* const at = logits + chunk * kTopChunkTokens;
    auto top = hn::LoadU(d, at);
    for (int64_t i = kLanes; i < kTopChunkTokens; i += kLanes) top = hn::Max(top, hn::LoadU(d, at + i));
    maxima[chunk] = hn::GetLane(hn::MaxOfLanes(d, top));
  }
}

int64_t Above(const float* logits, int64_t n, float bar, int32_t* ids) { return CollectAbove(logits, n, bar, ids); }

}  // namespace
}  // namespace senko::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace senko::ops {

HWY_EXPORT(ChunkMaxima);
HWY_EXPORT(Above);

std::span<const uint64_t> TopTokens::Find(const float* logits, int64_t n, int64_t k) {
  const int64_t chunks = n / kTopChunkTokens;
  if (k == 0 || chunks < 2 * k) {  // too many for the maxima to say much
    running_.Reset(k);
    running_.Offer(logits, n, 0);
    return running_.Best();
  }
  maxima_.resize(static_cast<size_t>(chunks));
  HWY_DYNAMIC_DISPATCH(ChunkMaxima)(logits, chunks, maxima_.data());
  std::nth_element(maxima_.begin(), maxima_.begin() + (k - 1), maxima_.end(), std::greater<>());
  ids_.resize(static_cast<size_t>(n));
  const int64_t count = HWY_DYNAMIC_DISPATCH(Above)(logits, n, maxima_[static_cast<size_t>(k - 1)], ids_.data());
  ranks_.clear();
  for (const int32_t id : std::span(ids_).first(static_cast<size_t>(count))) ranks_.push_back(Rank(logits[id], id));
  std::nth_element(ranks_.begin(), ranks_.begin() + (k - 1), ranks_.end(), std::greater<>());
  return std::span(ranks_).first(static_cast<size_t>(k));
}

}  // namespace senko::ops
#endif
