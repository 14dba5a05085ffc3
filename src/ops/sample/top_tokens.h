// The k best tokens of a row. Internal to the operator.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/select/running_topk.h"

namespace senko::ops {

inline constexpr int64_t kTopChunkTokens = 128;

// Scratch of one thread; it stops growing.
class TopTokens {
 public:
  // The k <= n best ranks (select/order_key.h), in no particular order. No logit is NaN; -infinity may be. Valid until
  // the next call.
  std::span<const uint64_t> Find(const float* logits, int64_t n, int64_t k);

 private:
  std::vector<float> maxima_;
  std::vector<int32_t> ids_;
  std::vector<uint64_t> ranks_;
  RunningTopK running_;
};

}  // namespace senko::ops
