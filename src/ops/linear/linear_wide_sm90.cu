// Many rows: wide_sm90.cuh over rows one behind another.
#include <cuda_runtime.h>

#include "base/check.h"
#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "ops/linear/linear_sm90.h"
#include "ops/linear/wide_sm90.cuh"

namespace senko::ops {
namespace {

using namespace sm90;  // NOLINT: the product
constexpr int kRows = 128;

struct Args {
  const int32_t* rows;
  const __nv_bfloat16* x;
  int64_t x_stride;
  TiledWeight weight;
  int64_t tile_bytes, tile_scale_bytes;
  int64_t num_tiles;
  int chunk_columns;
  __nv_bfloat16* y_bf16;
  float* y_float;
  int64_t y_stride;
};

__device__ void StoreResults(const Args& args, const __nv_bfloat16* results, int64_t first_row, int rows,
                             int64_t first_output) {
  const int outputs = static_cast<int>(min(int64_t{kWideOutputs}, args.weight.out - first_output));
  const int thread = static_cast<int>(threadIdx.x) - 128;
  __nv_bfloat16* y = args.y_bf16 + first_row * args.y_stride + first_output;
  if (outputs == kWideOutputs && args.y_stride % 8 == 0) {
    for (int i = thread; i < rows * (kWideOutputs / 8); i += 256) {
      const int row = i / (kWideOutputs / 8), piece = i % (kWideOutputs / 8);
      *reinterpret_cast<uint4*>(y + row * args.y_stride + piece * 8) =
          *reinterpret_cast<const uint4*>(results + row * kWideResultPitch + piece * 8);
    }
    return;
  }
  for (int i = thread; i < rows * kWideOutputs; i += 256) {
    const int row = i / kWideOutputs, column = i % kWideOutputs;
    if (column < outputs) y[row * args.y_stride + column] = results[row * kWideResultPitch + column];
  }
}

template <typename Tiles>
__global__ __launch_bounds__(kWideThreads, 1) void WideKernel(const Args args) {
  extern __shared__ uint8_t shared[];
  const WideRing<Tiles, kRows> ring(shared);
  __syncthreads();
  cuda::WaitForPrevious();
  const int64_t first_row = int64_t{blockIdx.y} * kRows, first_tile = int64_t{blockIdx.x} * kWideConsumers;
  const int rows = static_cast<int>(min(int64_t{kRows}, int64_t{*args.rows} - first_row));
  if (rows <= 0) return;
  const WideWeights weights{args.weight.tiles + first_tile * args.tile_bytes,
                            args.weight.scales + first_tile * args.tile_scale_bytes, args.weight.in, args.chunk_columns,
                            static_cast<int>(min(int64_t{kWideConsumers}, args.num_tiles - first_tile))};
  if (threadIdx.x < 128) {
    cuda::ShrinkRegisters<kWideProducerRegisters>();
    const uint32_t first = static_cast<uint32_t>(first_row * args.x_stride / 8);
    const uint32_t stride = static_cast<uint32_t>(args.x_stride / 8);
    WideProduce(ring, weights, args.x,
                [&](int row) { return row < rows ? first + static_cast<uint32_t>(row) * stride : kNoRow; });
    cuda::LetNextBegin();
  } else {
    cuda::GrowRegisters<kWideConsumerRegisters>();
    const int consumer = static_cast<int>(threadIdx.x) / 128 - 1;
    float total[kRows / 2];
    WideConsume(ring, weights, consumer, total);
    if (args.y_bf16 != nullptr) {
      StoreResults(args, WideResults(ring, shared, consumer, total), first_row, rows, first_tile * kTileOutputs);
    } else {
      const int thread = static_cast<int>(threadIdx.x) % 128, warp = thread / 32, lane = thread % 32;
      const int64_t output = (first_tile + consumer) * kTileOutputs + warp * 16 + lane / 4;
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) {
        const int row = i / 4 * 8 + lane % 4 * 2 + i % 2;
        const int64_t column = output + i / 2 % 2 * 8;
        if (row < rows && column < args.weight.out) {
          args.y_float[(first_row + row) * args.y_stride + column] = total[i];
        }
      }
    }
  }
}

template <typename Tiles>
void LaunchWide(const LinearSm90Params& p, const Args& args, cudaStream_t stream) {
  using Ring = WideRing<Tiles, kRows>;
  cuda::AllowSharedBytes<WideKernel<Tiles>>(Ring::kSharedBytes);
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>((args.num_tiles + kWideConsumers - 1) / kWideConsumers),
                     static_cast<unsigned>((p.max_rows + kRows - 1) / kRows));
  launch.block = dim3(kWideThreads);
  launch.shared_bytes = Ring::kSharedBytes;
  launch.stream = stream;
  cuda::Start(launch, WideKernel<Tiles>, args);
}

}  // namespace

void LinearWideSm90(const LinearSm90Params& p, cudaStream_t stream) {
  if (p.max_rows == 0) return;
  SENKO_CHECK(p.weight.in % kWideColumns == 0 && p.x_stride % 8 == 0);
  SENKO_CHECK(reinterpret_cast<uintptr_t>(p.y_bf16) % 16 == 0);
  SENKO_CHECK(p.max_rows * p.x_stride / 8 < int64_t{kNoRow});
  SENKO_CHECK((p.y_bf16 == nullptr) != (p.y_float == nullptr) && p.y_chunks == nullptr);
  const int64_t num_tiles = (p.weight.out + kTileOutputs - 1) / kTileOutputs;
  const Args args{p.rows,
                  p.x,
                  p.x_stride,
                  p.weight,
                  static_cast<int64_t>(TileBytes(p.weight.format, kTileOutputs, p.weight.in)),
                  static_cast<int64_t>(TileScaleBytes(p.weight.format, kTileOutputs, p.weight.in)),
                  num_tiles,
                  static_cast<int>(LinearChunkColumns(p.weight.in)),
                  p.y_bf16,
                  p.y_float,
                  p.y_stride};
  switch (p.weight.format) {
    case WeightFormat::kFp8:
      return LaunchWide<Fp8Tiles>(p, args, stream);
    case WeightFormat::kFp4:
      return LaunchWide<Fp4Tiles>(p, args, stream);
    case WeightFormat::kBf16:
      return LaunchWide<Bf16Tiles>(p, args, stream);
    case WeightFormat::kF32:
      break;
  }
  SENKO_CHECK(false);
}

}  // namespace senko::ops
