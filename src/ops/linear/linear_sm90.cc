#include "ops/linear/linear_sm90.h"

namespace senko::ops {

// Where the kernels cross (linear_sm90_bench). With few blocks, what counts is that all their weights are on the way at
// once, and the ring of shared memory holds more of them than registers do.
void LinearSm90(const LinearSm90Params& p, cudaStream_t stream) {
  constexpr int64_t kMostChunks = 8;  // of the first two kernels: a cluster's blocks
  if (LinearChunks(p.weight.in) > kMostChunks) return LinearWideSm90(p, stream);
  constexpr int64_t kFewBlocks = 2 * 132;
  const int64_t blocks = (p.weight.out + 63) / 64 * LinearChunks(p.weight.in);
  if (p.max_rows <= 16 && blocks > kFewBlocks) return LinearStreamSm90(p, stream);
  if (p.max_rows <= 64) return LinearSplitSm90(p, stream);
  LinearWideSm90(p, stream);
}

}  // namespace senko::ops
