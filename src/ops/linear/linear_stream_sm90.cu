// One to 16 rows, where nothing but the weights' bandwidth counts: a block takes one chunk of K of 64 outputs, each of
// its four warps streams 16 outputs' units through registers, kDepth ahead, into mma.sync; the blocks of a cluster, one
// per chunk, put the chunks' sums together in their order.
#include <cuda_runtime.h>

#include <type_traits>

#include "base/check.h"
#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "ops/linear/cluster_sums_sm90.cuh"
#include "ops/linear/linear_sm90.h"
#include "ops/linear/tiles_sm90.cuh"

namespace senko::ops {
namespace {

using namespace cuda;  // NOLINT: the instructions
using sm90::kTileOutputs;
using sm90::kUnitBytes;

constexpr int kThreads = 128;
constexpr int kPitch = int{kChunk} + 8;  // elements of a staged row; odd in 16 bytes: no bank conflicts

struct Args {
  const int32_t* rows;
  const __nv_bfloat16* x;
  int64_t x_stride;
  const uint8_t* tiles;
  const uint8_t* scales;
  int64_t in;
  int chunk_columns;
  unsigned group_tiles;
  sm90::Outputs to;
};

// kOctets: blocks of 8 rows.
template <int kOctets>
using Sums = sm90::ClusterSums<8 * kOctets, kTileOutputs, kThreads>;
template <int kOctets>
constexpr int SharedBytes(int chunks) {
  return 8 * kOctets * kPitch * 2 + Sums<kOctets>::Floats(chunks) * 4;
}

// The multiplier codes of a warp's units: one byte for 32 columns of e4m3, which the lanes hold for the whole chunk;
// four for a lane's two outputs and 64 columns of e2m1, which travel with the unit.
template <typename Tiles>
struct Scales {
  static constexpr bool kIsFp8 = std::is_same_v<Tiles, sm90::Fp8Tiles>;
  static constexpr bool kIsFp4 = std::is_same_v<Tiles, sm90::Fp4Tiles>;
  uint32_t mine = 0;
  const uint32_t* words = nullptr;
  __device__ Scales(const Args& a, int warp, int lane, int first_unit, int units) {
    const int64_t tile = blockIdx.x;
    if constexpr (kIsFp8) {
      mine = lane < units ? a.scales[(tile * 2 + warp / 2) * (a.in / 32) + first_unit + lane] : 0;
    } else if constexpr (kIsFp4) {
      words =
          reinterpret_cast<const uint32_t*>(a.scales) + ((tile * (a.in / 64) + first_unit) * 4 + warp) * 8 + lane / 4;
    }
  }
  __device__ uint32_t Ahead(int unit) const { return kIsFp4 ? __ldg(words + int64_t{unit} * 32) : 0; }
  __device__ uint32_t Now(int unit, uint32_t ahead) const {
    return kIsFp8 ? __shfl_sync(0xFFFFFFFFu, mine, unit) : ahead;
  }
};

template <typename Tiles>
__device__ void Fragments(const uint4& unit, uint32_t scale, int step, uint32_t (&a)[4]) {
  if constexpr (std::is_same_v<Tiles, sm90::Fp8Tiles>) {
    Tiles::Expand(unit, step, Tiles::Multiplier(scale), a);
  } else if constexpr (std::is_same_v<Tiles, sm90::Fp4Tiles>) {
    const uint32_t words[4] = {unit.x, unit.y, unit.z, unit.w};
    // Bytes 0 and 1: of output g, 32 columns each; 2 and 3: of g + 8.
    Tiles::Expand(words[step], Tiles::Multiplier(scale, step / 2), Tiles::Multiplier(scale, step / 2 + 2), a);
  } else {
    a[0] = unit.x, a[1] = unit.y, a[2] = unit.z, a[3] = unit.w;
  }
}

template <typename Tiles, int kOctets>
__global__ __launch_bounds__(kThreads) void StreamKernel(const Args args) {
  constexpr int kRows = 8 * kOctets, kDepth = 8;
  extern __shared__ __align__(128) uint8_t shared[];
  const int chunk = static_cast<int>(blockIdx.y), chunks = static_cast<int>(gridDim.y);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t first_column = int64_t{chunk} * args.chunk_columns;
  const int columns = static_cast<int>(min(int64_t{args.chunk_columns}, args.in - first_column));
  const Sums<kOctets> cluster{reinterpret_cast<float*>(shared + kRows * kPitch * 2), chunk, chunks};
  cluster.Begin();
  const int units = columns / Tiles::kColumns;
  const int first_unit = static_cast<int>(first_column / Tiles::kColumns);

  // Weights do not depend on the kernel ahead.
  const uint8_t* weights =
      args.tiles + ((blockIdx.x * (args.in / Tiles::kColumns) + first_unit) * 4 + warp) * kUnitBytes + lane * 16;
  const Scales<Tiles> scales(args, warp, lane, first_unit, units);
  uint4 ring[kDepth];
  uint32_t ring_scales[kDepth];
  const auto load = [&](int unit, int slot) {
    if (unit >= units) return;
    ring[slot] = LoadStreaming(weights + int64_t{unit} * 4 * kUnitBytes);
    ring_scales[slot] = scales.Ahead(unit);
  };
#pragma unroll
  for (int i = 0; i < kDepth; ++i) load(i, i);
  LetNextBegin();  // so that its weights are on their way, too, as far as there is room

  const __nv_bfloat16* x = args.x + blockIdx.x / args.group_tiles * args.in + first_column;

  WaitForPrevious();
  const int64_t first_row = int64_t{blockIdx.z} * kRows;
  const int rows = static_cast<int>(min(int64_t{kRows}, int64_t{*args.rows} - first_row));  // may be below 1
  const uint32_t stage = SharedAddress(shared);
  const int piece = static_cast<int>(threadIdx.x);
  static_assert(kThreads == int{kChunk} / 8);
  if (piece < columns / 8) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const bool live = row < rows;
      CopyAsync16(stage + static_cast<uint32_t>(row * kPitch + piece * 8) * 2,
                  live ? x + (first_row + row) * args.x_stride + piece * 8 : args.x, live);
    }
  }
  CommitCopies();
  WaitForCopies<0>();
  __syncthreads();

  float sums[kOctets][4] = {};
  // Lane l names row l % 8, columns 8 (l / 8) on, of four neighbouring 8 x 8 matrices; of two where a unit is one step.
  const uint32_t x_lane =
      stage + static_cast<uint32_t>(lane % 8 * kPitch + (Tiles::kSteps == 1 ? lane / 8 % 2 : lane / 8) * 8) * 2;
  for (int base = 0; base < units; base += kDepth) {
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      const int unit = base + i;
      if (unit >= units) break;
      const uint32_t scale = scales.Now(unit, ring_scales[i]);
      uint32_t a[Tiles::kSteps][4];
#pragma unroll
      for (int step = 0; step < Tiles::kSteps; ++step) Fragments<Tiles>(ring[i], scale, step, a[step]);
      load(unit + kDepth, i);
#pragma unroll
      for (int octet = 0; octet < kOctets; ++octet) {
        const uint32_t at = x_lane + static_cast<uint32_t>(octet * 8 * kPitch + unit * Tiles::kColumns) * 2;
#pragma unroll
        for (int two = 0; two < (Tiles::kSteps + 1) / 2; ++two) {
          uint32_t b[4];
          LoadMatrices(at + static_cast<uint32_t>(two * 64), b);
          MultiplyAdd16x8x16(sums[octet], a[2 * two], b[0], b[1]);
          if constexpr (Tiles::kSteps > 1) MultiplyAdd16x8x16(sums[octet], a[2 * two + 1], b[2], b[3]);
        }
      }
    }
  }

  cluster.MayPut();
#pragma unroll
  for (int i = 0; i < kOctets * 4; ++i) {
    const int row = i / 4 * 8 + lane % 4 * 2 + i % 2;
    if (row < rows) cluster.Put(row, warp * 16 + lane / 4 + i / 2 % 2 * 8, sums[i / 4][i % 4]);
  }
  cluster.Finish(args.to, first_row, rows, int64_t{blockIdx.x} * kTileOutputs);
}

template <typename Tiles, int kOctets>
void LaunchShape(const LinearSm90Params& p, const Args& args, cudaStream_t stream) {
  AllowSharedBytes<StreamKernel<Tiles, kOctets>>(SharedBytes<kOctets>(8));
  const auto chunks = static_cast<unsigned>(LinearChunks(p.weight.in));
  constexpr int kRows = 8 * kOctets;
  Launch launch;
  launch.grid = dim3(static_cast<unsigned>((p.weight.out + kTileOutputs - 1) / kTileOutputs), chunks,
                     static_cast<unsigned>((p.max_rows + kRows - 1) / kRows));
  launch.block = dim3(kThreads);
  launch.cluster = dim3(1, chunks, 1);
  launch.shared_bytes = SharedBytes<kOctets>(static_cast<int>(chunks));
  launch.stream = stream;
  Start(launch, StreamKernel<Tiles, kOctets>, args);
}

template <typename Tiles>
void LaunchRows(const LinearSm90Params& p, const Args& args, cudaStream_t stream) {
  if (p.max_rows <= 8) return LaunchShape<Tiles, 1>(p, args, stream);
  LaunchShape<Tiles, 2>(p, args, stream);
}

}  // namespace

void LinearStreamSm90(const LinearSm90Params& p, cudaStream_t stream) {
  if (p.max_rows == 0) return;
  CheckLinearSm90(p);
  SENKO_CHECK(LinearChunks(p.weight.in) <= 8);  // blocks of a cluster
  SENKO_CHECK((p.y_bf16 == nullptr) != (p.y_float == nullptr));
  const Args args{p.rows,
                  p.x,
                  p.x_stride,
                  p.weight.tiles,
                  p.weight.scales,
                  p.weight.in,
                  static_cast<int>(LinearChunkColumns(p.weight.in)),
                  static_cast<unsigned>(LinearGroupTiles(p)),
                  {p.weight.out, p.round_activations, p.y_bf16, p.y_float, p.y_stride}};
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
