// Linears without rounding points: a block has a tile of 64 outputs and eight rows. Bounded by float32 arithmetic for
// many rows and by the way to memory for few; nobody waits for it.
#include <cuda_runtime.h>

#include "base/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "ops/linear/float_tiles_sm90.cuh"
#include "ops/linear/linear_sm90.h"

namespace senko::ops {
namespace {

using sm90::kFloatRows;

template <WeightFormat kFormat, typename X>
__global__ __launch_bounds__(sm90::kFloatThreads) void FloatKernel(const LinearFloatSm90Params p, const X* from) {
  cuda::WaitForPrevious();
  cuda::LetNextBegin();
  const int64_t rows = *p.rows, first = int64_t{blockIdx.y} * kFloatRows, tile = blockIdx.x;
  if (first >= rows) return;
  const int count = static_cast<int>(min(rows - first, int64_t{kFloatRows}));
  if (p.group_out > 0) from += tile * sm90::kTileOutputs / p.group_out * p.weight.in;
  const X* x[kFloatRows];
#pragma unroll
  for (int r = 0; r < kFloatRows; ++r) x[r] = from + (first + min(r, count - 1)) * p.x_stride;
  float sums[2][kFloatRows];
  sm90::DotTile<kFormat>(p.weight.tiles, p.weight.scales, tile, p.weight.in, x, sums);
  sm90::ForEachSum(tile, count, [&](int o, int r, int64_t output) {
    if (output < p.weight.out) p.y[(first + r) * p.y_stride + output] = sums[o][r];
  });
}

template <typename X>
void StartFor(const LinearFloatSm90Params& p, const X* x, cudaStream_t stream) {
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>((p.weight.out + sm90::kTileOutputs - 1) / sm90::kTileOutputs),
                     static_cast<unsigned>((p.max_rows + kFloatRows - 1) / kFloatRows));
  launch.block = dim3(sm90::kFloatThreads);
  launch.stream = stream;
  switch (p.weight.format) {
    case WeightFormat::kFp8:
      return cuda::Start(launch, FloatKernel<WeightFormat::kFp8, X>, p, x);
    case WeightFormat::kFp4:
      return cuda::Start(launch, FloatKernel<WeightFormat::kFp4, X>, p, x);
    case WeightFormat::kBf16:
      return cuda::Start(launch, FloatKernel<WeightFormat::kBf16, X>, p, x);
    case WeightFormat::kF32:
      break;
  }
  SENKO_CHECK(false);
}

}  // namespace

void LinearFloatSm90(const LinearFloatSm90Params& p, cudaStream_t stream) {
  if (p.max_rows == 0) return;
  SENKO_CHECK(p.weight.in % 64 == 0 && p.x_stride % 2 == 0 && (p.x == nullptr) != (p.x_bf16 == nullptr));
  SENKO_CHECK(p.group_out == 0 || (p.group_out % sm90::kTileOutputs == 0 && p.weight.out % p.group_out == 0));
  if (p.x != nullptr) {
    StartFor(p, p.x, stream);
  } else {
    StartFor(p, p.x_bf16, stream);
  }
}

}  // namespace senko::ops
