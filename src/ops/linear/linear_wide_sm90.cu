// Many rows: wide_sm90.cuh over rows one behind another.
#include <cuda_runtime.h>

#include "base/check.h"
#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "numerics/fp8_lanes.cuh"
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
  int group_tiles, group_blocks;
  int chunk_columns;
  bool round;
  __nv_bfloat16* y_bf16;
  float* y_float;
  int64_t y_stride;
};

// Pieces of eight outputs, four neighbouring lanes a block of 32.
template <int kOutputs>
__device__ void StorePieces(const Args& args, const __nv_bfloat16* results, __nv_bfloat16* y, int rows) {
  constexpr int kPieces = kOutputs / 8;
  static_assert(kRows * kPieces % 256 == 0);  // so that no row is beyond the results
  const int thread = static_cast<int>(threadIdx.x) - 128;
  for (int begin = 0; begin < rows * kPieces; begin += 256) {
    const int row = (begin + thread) / kPieces, piece = (begin + thread) % kPieces;
    uint4 codes = *reinterpret_cast<const uint4*>(results + row * kWideResultPitch + piece * 8);
    if (args.round) {
      float v[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint32_t word = (&codes.x)[i / 2];
        v[i] = __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xFFFF0000u);
      }
      numerics::RoundFp8OverLanes(v);
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // exact in bf16: cut
        (&codes.x)[i] = __byte_perm(__float_as_uint(v[2 * i]), __float_as_uint(v[2 * i + 1]), 0x7632);
      }
    }
    if (row < rows) *reinterpret_cast<uint4*>(y + row * args.y_stride + piece * 8) = codes;
  }
}

__device__ void StoreResults(const Args& args, const __nv_bfloat16* results, int64_t first_row, int rows,
                             int64_t first_output, int outputs) {
  __nv_bfloat16* y = args.y_bf16 + first_row * args.y_stride + first_output;
  if (args.y_stride % 8 == 0) {
    if (outputs == kWideOutputs) return StorePieces<kWideOutputs>(args, results, y, rows);
    if (outputs == kTileOutputs) return StorePieces<kTileOutputs>(args, results, y, rows);
  }
  for (int i = static_cast<int>(threadIdx.x) - 128; i < rows * kWideOutputs; i += 256) {
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
  const int group = static_cast<int>(blockIdx.x) / args.group_blocks;
  const int tile = static_cast<int>(blockIdx.x) % args.group_blocks * kWideConsumers;  // of the group
  const int num_tiles = min(kWideConsumers, args.group_tiles - tile);
  const int64_t first_tile = int64_t{group} * args.group_tiles + tile, first_output = first_tile * kTileOutputs;
  const int outputs = static_cast<int>(min(int64_t{num_tiles} * kTileOutputs, args.weight.out - first_output));
  const int64_t first_row = int64_t{blockIdx.y} * kRows;
  const int rows = static_cast<int>(min(int64_t{kRows}, int64_t{*args.rows} - first_row));
  if (rows <= 0) return;
  const WideWeights weights{args.weight.tiles + first_tile * args.tile_bytes,
                            args.weight.scales + first_tile * args.tile_scale_bytes, args.weight.in, args.chunk_columns,
                            num_tiles};
  if (threadIdx.x < 128) {
    cuda::ShrinkRegisters<kWideProducerRegisters>();
    const uint32_t first = static_cast<uint32_t>((first_row * args.x_stride + group * args.weight.in) / 8);
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
      StoreResults(args, WideResults(ring, shared, consumer, total), first_row, rows, first_output, outputs);
    } else {
      const int thread = static_cast<int>(threadIdx.x) % 128, warp = thread / 32, lane = thread % 32;
      const int output = consumer * kTileOutputs + warp * 16 + lane / 4;
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) {
        const int row = i / 4 * 8 + lane % 4 * 2 + i % 2;
        const int column = output + i / 2 % 2 * 8;
        if (row < rows && column < outputs) {
          args.y_float[(first_row + row) * args.y_stride + first_output + column] = total[i];
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
  const int64_t groups = p.group_out > 0 ? p.weight.out / p.group_out : 1;
  launch.grid =
      dim3(static_cast<unsigned>(groups * args.group_blocks), static_cast<unsigned>((p.max_rows + kRows - 1) / kRows));
  launch.block = dim3(kWideThreads);
  launch.shared_bytes = Ring::kSharedBytes;
  launch.stream = stream;
  cuda::Start(launch, WideKernel<Tiles>, args);
}

}  // namespace

void LinearWideSm90(const LinearSm90Params& p, cudaStream_t stream) {
  if (p.max_rows == 0) return;
  CheckLinearSm90(p);
  SENKO_CHECK(reinterpret_cast<uintptr_t>(p.y_bf16) % 16 == 0);
  SENKO_CHECK(p.max_rows * p.x_stride / 8 < int64_t{kNoRow});
  SENKO_CHECK((p.y_bf16 == nullptr) != (p.y_float == nullptr) && p.y_chunks == nullptr);
  const int64_t group_tiles = LinearGroupTiles(p);
  const Args args{p.rows,
                  p.x,
                  p.x_stride,
                  p.weight,
                  static_cast<int64_t>(TileBytes(p.weight.format, kTileOutputs, p.weight.in)),
                  static_cast<int64_t>(TileScaleBytes(p.weight.format, kTileOutputs, p.weight.in)),
                  static_cast<int>(group_tiles),
                  static_cast<int>((group_tiles + kWideConsumers - 1) / kWideConsumers),
                  static_cast<int>(LinearChunkColumns(p.weight.in)),
                  p.round_activations,
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
