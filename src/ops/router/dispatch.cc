// Dispatch lists by counting sort: two passes over the ids, stable, so rows ascend inside an expert.
#include "base/check.h"
#include "ops/router/router.h"

namespace senko::ops {

void MakeDispatchLists(const int32_t* ids, int64_t rows, int64_t topk, int64_t num_experts, DispatchLists lists) {
  int32_t* begin = lists.expert_begin;
  for (int64_t e = 0; e <= num_experts; ++e) begin[e] = 0;
  for (int64_t i = 0; i < rows * topk; ++i) {
    SENKO_CHECK(ids[i] >= 0 && ids[i] < num_experts);
    ++begin[ids[i] + 1];
  }
  for (int64_t e = 0; e < num_experts; ++e) begin[e + 1] += begin[e];
  // begin[e] walks to the next free place of expert e, and ends at the next expert's begin.
  for (int64_t i = 0; i < rows * topk; ++i) lists.pairs[begin[ids[i]]++] = static_cast<int32_t>(i);
  for (int64_t e = num_experts; e > 0; --e) begin[e] = begin[e - 1];
  begin[0] = 0;
}

}  // namespace senko::ops
