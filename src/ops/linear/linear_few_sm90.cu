// Few rows and few outputs, where latency counts: all weights of a block are on their way into shared memory at once
// and before the kernel ahead has ended; what remains after it is the rows' way and a chain of 64 tensor-core steps. A
// block takes one chunk of K of a tile of 64 outputs, or, of the wider bf16, of one unit of 16.
#include <cuda_runtime.h>

#include <algorithm>
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
using sm90::kUnitBytes;

constexpr int kPitch = int{kChunk} + 8;  // elements of a staged row; odd in 16 bytes: no bank conflicts
constexpr int kUnitOutputs = 16;

struct Args {
  const int32_t* rows;
  const __nv_bfloat16* x;
  int64_t x_stride;
  const uint8_t* tiles;
  const uint8_t* scales;
  int64_t in;
  int chunk_columns;
  unsigned group_blocks;
  sm90::Outputs to;
  float* y_chunks;
  int64_t max_rows;
};

template <typename Tiles_, int kUnits_, int kOctets_>
struct Shape {
  using Tiles = Tiles_;
  static constexpr bool kIsFp8 = std::is_same_v<Tiles, sm90::Fp8Tiles>;
  static constexpr int kUnits = kUnits_;    // of 16 outputs
  static constexpr int kOctets = kOctets_;  // of rows
  static constexpr int kRows = 8 * kOctets;
  // A warp has one unit, and all rows or eight of them.
  static constexpr int kGroups = kUnits == 1 ? kOctets : 1;
  static constexpr int kOwn = kOctets / kGroups;
  static constexpr int kThreads = 32 * std::max(4, kUnits* kGroups);
  static constexpr int kOutputs = kUnitOutputs * kUnits;
  static constexpr int kRowBytes = kRows * kPitch * 2;
  using Sums = sm90::ClusterSums<kRows, kOutputs, kThreads>;
  __host__ __device__ static constexpr int WeightBytes(int columns) {
    return columns / Tiles::kColumns * kUnits * kUnitBytes;
  }
  static constexpr int SharedBytes(int columns, int chunks) {
    return WeightBytes(columns) + kRowBytes + Sums::Floats(chunks) * 4;
  }
};

// The fragments of 32 columns.
template <typename S>
struct Fragments {
  uint32_t a[2][4];
  uint32_t b[S::kOwn][4];

  // `weights`: this lane's 16 bytes of the first unit; `x`: of its first octet of rows, in shared memory.
  __device__ void Load(const uint8_t* weights, uint32_t x, int block, uint32_t scale) {
    if constexpr (S::kIsFp8) {
      const auto unit = *reinterpret_cast<const uint4*>(weights + block * S::kUnits * kUnitBytes);
      const uint32_t multiplier = S::Tiles::Multiplier(scale);
      S::Tiles::Expand(unit, 0, multiplier, a[0]);
      S::Tiles::Expand(unit, 1, multiplier, a[1]);
    } else {
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const auto unit = *reinterpret_cast<const uint4*>(weights + (block * 2 + step) * S::kUnits * kUnitBytes);
        a[step][0] = unit.x, a[step][1] = unit.y, a[step][2] = unit.z, a[step][3] = unit.w;
      }
    }
#pragma unroll
    for (int octet = 0; octet < S::kOwn; ++octet) {
      LoadMatrices(x + static_cast<uint32_t>(octet * 8 * kPitch * 2 + block * 64), b[octet]);
    }
  }
  __device__ void Multiply(float (&sums)[S::kOwn][4]) const {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int octet = 0; octet < S::kOwn; ++octet) {
        MultiplyAdd16x8x16(sums[octet], a[step], b[octet][2 * step], b[octet][2 * step + 1]);
      }
    }
  }
};

template <typename S>
__global__ __launch_bounds__(S::kThreads) void FewKernel(const Args args) {
  extern __shared__ __align__(128) uint8_t shared[];
  const int chunk = static_cast<int>(blockIdx.y), chunks = static_cast<int>(gridDim.y);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int64_t first_column = int64_t{chunk} * args.chunk_columns;
  const int columns = static_cast<int>(min(int64_t{args.chunk_columns}, args.in - first_column));
  const uint32_t weights_at = SharedAddress(shared);
  const uint32_t x_at = weights_at + static_cast<uint32_t>(S::WeightBytes(args.chunk_columns));
  const typename S::Sums cluster{reinterpret_cast<float*>(shared + S::WeightBytes(args.chunk_columns) + S::kRowBytes),
                                 chunk, chunks};
  if (args.y_chunks == nullptr) cluster.Begin();

  // Weights do not depend on the kernel ahead.
  constexpr int kBlockUnits = 4 / S::kUnits;  // blocks of a tile
  const int64_t tile = blockIdx.x / kBlockUnits;
  const int first_unit = static_cast<int>(first_column) / S::Tiles::kColumns, units = columns / S::Tiles::kColumns;
  const uint8_t* weights = args.tiles + (tile * (args.in / S::Tiles::kColumns) + first_unit) * 4 * kUnitBytes +
                           blockIdx.x % kBlockUnits * S::kUnits * kUnitBytes;
  constexpr int kPieces = S::kUnits * kUnitBytes / 16;  // side by side
  for (int i = thread; i < units * kPieces; i += S::kThreads) {
    CopyAsync16(weights_at + static_cast<uint32_t>(i) * 16, weights + i / kPieces * (4 * kUnitBytes) + i % kPieces * 16,
                true);
  }
  uint32_t chunk_scale = 0;  // lane l: of columns 32 l of the chunk
  if constexpr (S::kIsFp8) {
    const int64_t scale_row = tile * 2 + (blockIdx.x % kBlockUnits * S::kUnits + warp % S::kUnits) / 2;
    if (lane < units) chunk_scale = args.scales[scale_row * (args.in / 32) + first_unit + lane];
  }
  LetNextBegin();

  WaitForPrevious();
  const int64_t first_row = int64_t{blockIdx.z} * S::kRows;
  const int rows = static_cast<int>(min(int64_t{S::kRows}, int64_t{*args.rows} - first_row));  // may be below 1
  const __nv_bfloat16* x = args.x + blockIdx.x / args.group_blocks * args.in + first_column;
  constexpr int kRowPieces = int{kChunk} / 8;
  const int piece = thread % kRowPieces;
  if (piece < columns / 8) {
#pragma unroll 8
    for (int row = thread / kRowPieces; row < S::kRows; row += S::kThreads / kRowPieces) {
      const bool live = row < rows;
      CopyAsync16(x_at + static_cast<uint32_t>(row * kPitch + piece * 8) * 2,
                  live ? x + (first_row + row) * args.x_stride + piece * 8 : args.x, live);
    }
  }
  CommitCopies();
  WaitForCopies<0>();
  __syncthreads();

  const int unit = warp % S::kUnits, group = warp / S::kUnits;
  const bool works = group < S::kGroups && group * S::kOwn * 8 < rows;
  float sums[S::kOwn][4] = {};
  if (works) {
    const uint8_t* own_weights = shared + unit * kUnitBytes + lane * 16;
    const uint32_t own_x = x_at + static_cast<uint32_t>((group * S::kOwn * 8 + lane % 8) * kPitch + lane / 8 * 8) * 2;
    const int blocks = columns / 32;
    const auto scale = [&](int block) { return S::kIsFp8 ? __shfl_sync(0xFFFFFFFFu, chunk_scale, block) : 0u; };
    Fragments<S> two[2];
    two[0].Load(own_weights, own_x, 0, scale(0));
    for (int block = 0; block < blocks; block += 2) {  // an even number: chunks are multiples of 64 columns
      two[1].Load(own_weights, own_x, block + 1, scale(block + 1));
      two[0].Multiply(sums);
      if (block + 2 < blocks) two[0].Load(own_weights, own_x, block + 2, scale(block + 2));
      two[1].Multiply(sums);
    }
  }

  if (args.y_chunks == nullptr) cluster.MayPut();
  if (works) {
#pragma unroll
    for (int i = 0; i < S::kOwn * 4; ++i) {
      const int row = (group * S::kOwn + i / 4) * 8 + lane % 4 * 2 + i % 2;
      const int output = unit * kUnitOutputs + lane / 4 + i / 2 % 2 * 8;
      if (row >= rows) continue;
      const float sum = sums[i / 4][i % 4];
      if (args.y_chunks == nullptr) {
        cluster.Put(row, output, sum);
      } else if (const int64_t column = int64_t{blockIdx.x} * S::kOutputs + output; column < args.to.out) {
        args.y_chunks[(chunk * args.max_rows + first_row + row) * args.to.out + column] = sum;
      }
    }
  }
  if (args.y_chunks == nullptr) cluster.Finish(args.to, first_row, rows, int64_t{blockIdx.x} * S::kOutputs);
}

template <typename S>
void LaunchShape(const LinearSm90Params& p, cudaStream_t stream) {
  const auto chunks = static_cast<unsigned>(LinearChunks(p.weight.in));
  const int columns = static_cast<int>(LinearChunkColumns(p.weight.in));
  constexpr int kMostChunks = 8;  // of a cluster
  AllowSharedBytes<FewKernel<S>>(S::SharedBytes(kChunk, kMostChunks));
  const Args args{p.rows,
                  p.x,
                  p.x_stride,
                  p.weight.tiles,
                  p.weight.scales,
                  p.weight.in,
                  columns,
                  static_cast<unsigned>(LinearGroupTiles(p) * (4 / S::kUnits)),
                  {p.weight.out, p.round_activations, p.y_bf16, p.y_float, p.y_stride},
                  p.y_chunks,
                  p.max_rows};
  Launch launch;
  launch.grid = dim3(static_cast<unsigned>((p.weight.out + S::kOutputs - 1) / S::kOutputs), chunks,
                     static_cast<unsigned>((p.max_rows + S::kRows - 1) / S::kRows));
  launch.block = dim3(S::kThreads);
  if (p.y_chunks == nullptr) launch.cluster = dim3(1, chunks, 1);
  launch.shared_bytes = S::SharedBytes(columns, p.y_chunks == nullptr ? static_cast<int>(chunks) : 1);
  launch.stream = stream;
  Start(launch, FewKernel<S>, args);
}

}  // namespace

void LinearFewSm90(const LinearSm90Params& p, cudaStream_t stream) {
  if (p.max_rows == 0) return;
  CheckLinearSm90(p);
  SENKO_CHECK((p.y_bf16 != nullptr) + (p.y_float != nullptr) + (p.y_chunks != nullptr) == 1);
  SENKO_CHECK(p.y_chunks != nullptr || LinearChunks(p.weight.in) <= 8);  // blocks of a cluster
  if (p.weight.format == WeightFormat::kFp8) {
    if (p.max_rows <= 8) return LaunchShape<Shape<sm90::Fp8Tiles, 4, 1>>(p, stream);
    return LaunchShape<Shape<sm90::Fp8Tiles, 4, 2>>(p, stream);
  }
  SENKO_CHECK(p.weight.format == WeightFormat::kBf16 && !p.round_activations);
  if (p.max_rows <= 8) return LaunchShape<Shape<sm90::Bf16Tiles, 1, 1>>(p, stream);
  if (p.max_rows <= 16) return LaunchShape<Shape<sm90::Bf16Tiles, 1, 2>>(p, stream);
  if (p.max_rows <= 32) return LaunchShape<Shape<sm90::Bf16Tiles, 1, 4>>(p, stream);
  LaunchShape<Shape<sm90::Bf16Tiles, 1, 8>>(p, stream);
}

}  // namespace senko::ops
