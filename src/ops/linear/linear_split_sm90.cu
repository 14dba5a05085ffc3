// Few rows, on wgmma: a block takes one chunk of K of 64 outputs, its cluster all chunks. Producers (a warp, or four)
// bring the weights, before the kernel ahead has ended, and the rows into a ring of shared memory, the larger the fewer
// blocks there are; a warpgroup expands the weights in registers, as operand A, and multiplies; the blocks of the
// cluster put the chunks' sums together in their order.
#include <cuda_runtime.h>

#include <type_traits>

#include "base/check.h"
#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "numerics/fp8_lanes.cuh"
#include "ops/linear/expand_sm90.cuh"
#include "ops/linear/linear_sm90.h"
#include "ops/linear/tiles_sm90.cuh"
#include "ops/linear/wgmma.cuh"

namespace senko::ops {
namespace {

using namespace cuda;  // NOLINT: the instructions
using sm90::kTileOutputs;
using sm90::kUnitBytes;

constexpr int kColumns = 64;  // of a stage

struct Args {
  const int32_t* rows;
  const __nv_bfloat16* x;
  int64_t x_stride;
  const uint8_t* tiles;
  const uint8_t* scales;
  int64_t in, out;
  int chunk_columns;
  unsigned group_tiles;
  bool round;
  __nv_bfloat16* y_bf16;
  float* y_float;
  float* y_chunks;
  int64_t y_stride;
  int64_t max_rows;
};

// kBlocks: on a multiprocessor.
template <typename Tiles_, int kRows_, int kBlocks_>
struct Shape {
  using Tiles = Tiles_;
  static constexpr int kRows = kRows_;
  static constexpr bool kIsFp8 = std::is_same_v<Tiles, sm90::Fp8Tiles>;
  static constexpr bool kIsFp4 = std::is_same_v<Tiles, sm90::Fp4Tiles>;
  static constexpr int kBlocks = kBlocks_;
  static constexpr int kProducers = kRows >= 64 && kBlocks > 2 ? 128 : 32;  // threads
  static constexpr int kThreads = 128 + kProducers;
  static constexpr int kFloats = kRows / 2;  // of a consumer's thread
  // A stage: rows, weights, scales.
  static constexpr int kRowBytes = kRows * 128;
  static constexpr int kTileBytes = kColumns / Tiles::kColumns * 4 * kUnitBytes;
  static constexpr int kScaleBytes = kIsFp4 ? 128 : 0;
  static constexpr int kStageBytes = (kRowBytes + kTileBytes + kScaleBytes + 1023) / 1024 * 1024;
  static constexpr int kMostRingBytes = (228 / kBlocks - 3) * 1024;
  static constexpr int kStages = kMostRingBytes / kStageBytes < 16 ? kMostRingBytes / kStageBytes : 16;
  static constexpr int kSumPitch = kTileOutputs + 4;  // floats
  static constexpr int kRingBytes = kStages * kStageBytes;
  static_assert(kRingBytes >= kRows * kSumPitch * 4);
  static constexpr int kSharedBytes = kRingBytes + 1024 + kStages * 16;
  static_assert(kBlocks * (kSharedBytes + 1024) <= 228 * 1024);
};

template <typename S>
__device__ void BringWeights(const Args& args, uint32_t ring, uint32_t full, int64_t column, int k) {
  const auto slot = static_cast<uint32_t>(k % S::kStages);
  const uint32_t at = ring + slot * S::kStageBytes, ready = full + slot * 8;
  const int64_t block = (int64_t{blockIdx.x} * args.in + column) / kColumns + k;
  ArriveExpecting(ready, S::kTileBytes + S::kScaleBytes);
  BulkCopy(at + S::kRowBytes, args.tiles + block * S::kTileBytes, S::kTileBytes, ready);
  if constexpr (S::kIsFp4) {
    BulkCopy(at + S::kRowBytes + S::kTileBytes, args.scales + block * S::kScaleBytes, S::kScaleBytes, ready);
  }
}

// A thread brings one 16-byte column of every kProducers / 8-th row. Rows beyond `rows`, those that may
// be read, are zeros.
template <typename S>
__device__ void BringRows(const Args& args, uint32_t ring, uint32_t full, uint32_t empty, int64_t first_row, int rows,
                          int64_t first_column, int stages) {
  constexpr int kRowStep = S::kProducers / 8;
  const int thread = static_cast<int>(threadIdx.x) - 128, row = thread / 8, column = thread % 8;
  const int64_t group_column = blockIdx.x / args.group_tiles * args.in;
  const __nv_bfloat16* from =
      args.x + (row < rows ? (first_row + row) * args.x_stride : 0) + group_column + first_column + column * 8;
  const int64_t step = kRowStep * args.x_stride;
  const int live = (rows - row + kRowStep - 1) / kRowStep;  // of this thread's rows
  uint32_t slot = 0, parity = 1;
  for (int k = 0; k < stages; ++k) {
    const uint32_t at = ring + slot * S::kStageBytes, ready = full + slot * 8;
    if (k >= S::kStages) {
      WaitBarrier(empty + slot * 8, parity);
      if (thread == 0) BringWeights<S>(args, ring, full, first_column, k);
    }
#pragma unroll
    for (int i = 0; i < S::kRows / kRowStep; ++i) {
      const int to_row = row + i * kRowStep;
      CopyAsync16(at + static_cast<uint32_t>(to_row * 128 + (column ^ to_row % 8) * 16),
                  i < live ? from + i * step : args.x, i < live);
    }
    from += kColumns;
    ArriveAfterCopies(ready);
    if (++slot == S::kStages) slot = 0, parity ^= 1;
  }
}

template <typename S>
__device__ void Multiply(const Args& args, uint32_t ring, uint32_t full, uint32_t empty, int64_t first_column,
                         int stages, float (&sums)[S::kFloats]) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t a[2][2][4];
  uint32_t chunk_scale = 0;
  if constexpr (S::kIsFp8) {
    const int64_t blocks = args.in / 32, block = first_column / 32 + lane;
    if (block < blocks) chunk_scale = args.scales[(int64_t{blockIdx.x} * 2 + warp / 2) * blocks + block];
  }
  uint32_t slot = 0, parity = 0;
  for (int k = 0; k < stages; ++k) {
    const uint32_t at = ring + slot * S::kStageBytes;
    WaitBarrier(full + slot * 8, parity);
    FenceAsyncProxy();  // the rows came by ordinary copies
    const uint32_t units = at + static_cast<uint32_t>(S::kRowBytes + warp * kUnitBytes + lane * 16);
    uint32_t fp4_scales = 0;
    if constexpr (S::kIsFp4) {
      asm volatile("ld.shared.u32 %0, [%1];"
                   : "=r"(fp4_scales)
                   : "r"(at + static_cast<uint32_t>(S::kRowBytes + S::kTileBytes + warp * 32 + lane / 4 * 4)));
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t fp8_scale = 0;
      if constexpr (S::kIsFp8) fp8_scale = __shfl_sync(0xFFFFFFFFu, chunk_scale, k * 2 + half);
      sm90::WgmmaWait<1>();  // the group that read these registers
      if (half == 1 && k > 0) Arrive(empty + (slot == 0 ? S::kStages - 1 : slot - 1) * 8);
      sm90::ExpandShared<typename S::Tiles>(units, fp4_scales, fp8_scale, half, a[half]);
      sm90::WgmmaFence();
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        sm90::Wgmma<S::kRows>::Run(sums, a[half][step],
                                   sm90::SwizzledRows(at + static_cast<uint32_t>((half * 2 + step) * 32)),
                                   k + half + step > 0);
      }
      sm90::WgmmaCommit();
    }
    if (++slot == S::kStages) slot = 0, parity ^= 1;
  }
  sm90::WgmmaWait<0>();
}

template <typename S>
__global__ __launch_bounds__(S::kThreads, S::kBlocks) void SplitKernel(const Args args) {
  extern __shared__ uint8_t shared[];
  const uint32_t ring = (SharedAddress(shared) + 1023) / 1024 * 1024;
  const uint32_t full = ring + S::kRingBytes, empty = full + S::kStages * 8;
  const int chunk = static_cast<int>(blockIdx.y), chunks = static_cast<int>(gridDim.y);
  const int64_t first_column = int64_t{chunk} * args.chunk_columns;
  const int stages = static_cast<int>(min(int64_t{args.chunk_columns}, args.in - first_column)) / kColumns;
  if (threadIdx.x == 128) {
    for (int i = 0; i < S::kStages; ++i) {
      InitBarrier(full + static_cast<uint32_t>(i) * 8, S::kProducers + 1);
      InitBarrier(empty + static_cast<uint32_t>(i) * 8, 128);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    // Weights do not depend on the kernel ahead.
    for (int k = 0; k < min(stages, S::kStages); ++k) BringWeights<S>(args, ring, full, first_column, k);
  }
  LetNextBegin();  // so that its weights are on their way, too, as far as there is room
  __syncthreads();
  WaitForPrevious();
  const int64_t first_row = int64_t{blockIdx.z} * S::kRows;
  const int rows = static_cast<int>(min(int64_t{S::kRows}, int64_t{*args.rows} - first_row));  // may be below 1
  // How many rows live is not waited for: what lies beyond them is multiplied into outputs that nobody stores.
  const int readable = static_cast<int>(min(int64_t{S::kRows}, args.max_rows - first_row));
  float* sums_at = reinterpret_cast<float*>(shared + (ring - SharedAddress(shared)));
  if (threadIdx.x >= 128) {
    BringRows<S>(args, ring, full, empty, first_row, readable, first_column, stages);
    __syncthreads();
  } else {
    float sums[S::kFloats];
    Multiply<S>(args, ring, full, empty, first_column, stages, sums);
    __syncthreads();  // all stages have been read: the sums may lie there, [row][output]
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    float* at = sums_at + lane % 4 * 2 * S::kSumPitch + warp * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < S::kFloats; ++i) at[(i / 4 * 8 + i % 2) * S::kSumPitch + i / 2 % 2 * 8] = sums[i];
  }
  if (args.y_chunks != nullptr) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < rows * kTileOutputs; i += S::kThreads) {
      const int row = i / kTileOutputs, output = i % kTileOutputs;
      const int64_t column = int64_t{blockIdx.x} * kTileOutputs + output;
      if (column >= args.out) continue;
      args.y_chunks[(chunk * args.max_rows + first_row + row) * args.out + column] =
          sums_at[row * S::kSumPitch + output];
    }
    return;
  }
  ClusterArrive();
  ClusterWait();
  for (int i = chunk * S::kThreads + static_cast<int>(threadIdx.x); i < rows * kTileOutputs;
       i += chunks * S::kThreads) {
    const int row = i / kTileOutputs, output = i % kTileOutputs;
    const int64_t column = int64_t{blockIdx.x} * kTileOutputs + output;
    if (column >= args.out) continue;
    const uint32_t from = ring + static_cast<uint32_t>(row * S::kSumPitch + output) * 4;
    constexpr int kMostChunks = 8;
    float of_chunk[kMostChunks];  // all on the way at once
#pragma unroll
    for (int c = 0; c < kMostChunks; ++c) {
      of_chunk[c] = c < chunks ? LoadOfBlock(from, static_cast<uint32_t>(c)) : 0.0f;
    }
    float sum = of_chunk[0];
#pragma unroll
    for (int c = 1; c < kMostChunks; ++c) sum = c < chunks ? __fadd_rn(sum, of_chunk[c]) : sum;
    const int64_t to = (first_row + row) * args.y_stride + column;
    if (args.y_bf16 != nullptr) {
      // A warp has 32 neighbouring outputs of a row.
      if (args.round) sum = numerics::RoundFp8OverWarp(__bfloat162float(__float2bfloat16_rn(sum)));
      args.y_bf16[to] = __float2bfloat16_rn(sum);
    } else {
      args.y_float[to] = sum;
    }
  }
  ClusterArriveRelaxed();  // nobody leaves while another reads its sums
  ClusterWait();
}

template <typename S>
void LaunchShape(const LinearSm90Params& p, const Args& args, cudaStream_t stream) {
  AllowSharedBytes<SplitKernel<S>>(S::kSharedBytes);
  Launch launch;
  const auto chunks = static_cast<unsigned>(LinearChunks(p.weight.in));
  launch.grid = dim3(static_cast<unsigned>((p.weight.out + kTileOutputs - 1) / kTileOutputs), chunks,
                     static_cast<unsigned>((p.max_rows + S::kRows - 1) / S::kRows));
  launch.block = dim3(S::kThreads);
  if (args.y_chunks == nullptr) launch.cluster = dim3(1, chunks, 1);
  launch.shared_bytes = S::kSharedBytes;
  launch.stream = stream;
  Start(launch, SplitKernel<S>, args);
}

template <typename Tiles, int kRows>
void LaunchBlocks(const LinearSm90Params& p, const Args& args, cudaStream_t stream) {
  constexpr int64_t kMultiprocessors = 132;
  const int64_t blocks = (p.weight.out + kTileOutputs - 1) / kTileOutputs * LinearChunks(p.weight.in);
  if (blocks > 2 * kMultiprocessors) return LaunchShape<Shape<Tiles, kRows, 3>>(p, args, stream);
  LaunchShape<Shape<Tiles, kRows, 2>>(p, args, stream);
}

template <typename Tiles>
void LaunchRows(const LinearSm90Params& p, const Args& args, cudaStream_t stream) {
  if (p.max_rows <= 8) return LaunchBlocks<Tiles, 8>(p, args, stream);
  if (p.max_rows <= 16) return LaunchBlocks<Tiles, 16>(p, args, stream);
  if (p.max_rows <= 32) return LaunchBlocks<Tiles, 32>(p, args, stream);
  LaunchBlocks<Tiles, 64>(p, args, stream);
}

}  // namespace

void LinearSplitSm90(const LinearSm90Params& p, cudaStream_t stream) {
  if (p.max_rows == 0) return;
  CheckLinearSm90(p);
  SENKO_CHECK((p.y_bf16 != nullptr) + (p.y_float != nullptr) + (p.y_chunks != nullptr) == 1);
  SENKO_CHECK(p.y_chunks != nullptr || LinearChunks(p.weight.in) <= 8);  // blocks of a cluster
  const Args args{p.rows,
                  p.x,
                  p.x_stride,
                  p.weight.tiles,
                  p.weight.scales,
                  p.weight.in,
                  p.weight.out,
                  static_cast<int>(LinearChunkColumns(p.weight.in)),
                  static_cast<unsigned>(LinearGroupTiles(p)),
                  p.round_activations,
                  p.y_bf16,
                  p.y_float,
                  p.y_chunks,
                  p.y_stride,
                  p.max_rows};
  switch (p.weight.format) {
    case WeightFormat::kFp8:
      return LaunchRows<sm90::Fp8Tiles>(p, args, stream);
    case WeightFormat::kFp4:
      return LaunchRows<sm90::Fp4Tiles>(p, args, stream);
    case WeightFormat::kBf16:
      return LaunchRows<sm90::Bf16Tiles>(p, args, stream);
    case WeightFormat::kF32:
      break;
  }
  SENKO_CHECK(false);
}

}  // namespace senko::ops
