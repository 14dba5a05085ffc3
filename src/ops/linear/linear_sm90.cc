#include "ops/linear/linear_sm90.h"

#include "base/check.h"

namespace senko::ops {

void CheckLinearSm90(const LinearSm90Params& p) {
  SENKO_CHECK(p.weight.in % 64 == 0 && p.x_stride % 8 == 0);
  if (p.group_out > 0) {
    SENKO_CHECK(p.group_out % 64 == 0 && p.weight.out % p.group_out == 0);
    SENKO_CHECK(p.x_stride >= p.weight.out / p.group_out * p.weight.in);
  }
  if (p.round_activations) SENKO_CHECK(p.y_bf16 != nullptr && p.weight.out % 64 == 0 && p.y_stride % 8 == 0);
}

// Where the kernels cross (linear_sm90_bench). With few blocks, what counts is that all their weights are on the way at
// once, and shared memory holds more of them than registers do.
void LinearSm90(const LinearSm90Params& p, cudaStream_t stream) {
  constexpr int64_t kMostChunks = 8;  // but for the last kernel: a cluster's blocks
  if (LinearChunks(p.weight.in) > kMostChunks) return LinearWideSm90(p, stream);
  constexpr int64_t kFewBlocks = 2 * 132;
  const int64_t blocks = (p.weight.out + 63) / 64 * LinearChunks(p.weight.in);
  // Two pairs of tiles for every multiprocessor, about: with fewer, some wait for those that have one more. Of e4m3, up
  // to 8 rows, the registers' stream is as fast.
  constexpr int64_t kManyTiles = 500;
  const bool many = (p.weight.out + 63) / 64 >= kManyTiles && LinearRingTakes(p);
  if (many && (p.weight.format == WeightFormat::kBf16 || p.max_rows > 8)) return LinearRingSm90(p, stream);
  if (p.max_rows <= 16 && blocks > kFewBlocks) return LinearStreamSm90(p, stream);
  const bool few =
      p.weight.format == WeightFormat::kFp8 || (p.weight.format == WeightFormat::kBf16 && !p.round_activations);
  if (p.max_rows <= 16 && few) return LinearFewSm90(p, stream);
  // Its blocks read rows for 64 outputs each, the last kernel's for 128; that one needs outputs enough for all of the
  // GPU, and a short K, since a block has all of it.
  const bool wide = (p.weight.out + 127) / 128 >= 132 && LinearChunks(p.weight.in) <= 2;
  if (p.max_rows <= 64 && !wide) return LinearSplitSm90(p, stream);
  LinearWideSm90(p, stream);
}

void LinearChunksSm90(const LinearSm90Params& p, cudaStream_t stream) {
  SENKO_CHECK(p.y_chunks != nullptr && p.weight.format == WeightFormat::kBf16);
  if (p.max_rows <= 64) return LinearFewSm90(p, stream);
  LinearSplitSm90(p, stream);
}

}  // namespace senko::ops
