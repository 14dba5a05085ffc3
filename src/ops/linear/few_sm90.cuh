// Few rows and few outputs, where latency counts: all weights of a block are on their way into shared memory at once
// and before the kernel ahead has ended; what remains after it is the rows' way and a chain of 64 tensor-core steps. A
// block takes one chunk of K of a tile of 64 outputs, or, of the wider bf16, of one unit of 16.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "ops/linear/cluster_sums_sm90.cuh"
#include "ops/linear/linear_sm90.h"
#include "ops/linear/tiles_sm90.cuh"

namespace senko::ops::sm90 {

constexpr int kFewPitch = int{kChunk} + 8;  // elements of a staged row; odd in 16 bytes: no bank conflicts
constexpr int kFewUnitOutputs = 16;

struct FewArgs {
  const int32_t* rows;
  const __nv_bfloat16* x;
  int64_t x_stride;
  const uint8_t* tiles;
  const uint8_t* scales;
  int64_t in;
  int chunk_columns;
  unsigned group_blocks;
  Outputs to;
  float* y_chunks;
  int64_t max_rows;
};

// kRows_: 2, or a multiple of 8.
template <typename Tiles_, int kUnits_, int kRows_, int kLeastWarps = 4>
struct FewShape {
  using Tiles = Tiles_;
  static constexpr bool kIsFp8 = std::is_same_v<Tiles, Fp8Tiles>;
  static constexpr int kUnits = kUnits_;  // of 16 outputs
  static constexpr int kRows = kRows_;
  static constexpr int kOctets = (kRows + 7) / 8;
  static constexpr int kMatrixRows = kRows < 8 ? kRows : 8;
  // A warp has one unit, and all rows or eight of them.
  static constexpr int kGroups = kUnits == 1 ? kOctets : 1;
  static constexpr int kOwn = kOctets / kGroups;
  static constexpr int kThreads = 32 * std::max(kLeastWarps, kUnits* kGroups);
  static constexpr int kOutputs = kFewUnitOutputs * kUnits;
  static constexpr int kRowBytes = kRows * kFewPitch * 2;
  using Sums = ClusterSums<kRows, kOutputs>;
  __host__ __device__ static constexpr int WeightBytes(int columns) {
    return columns / Tiles::kColumns * kUnits * kUnitBytes;
  }
  static constexpr int SharedBytes(int columns, int chunks) {
    return WeightBytes(columns) + kRowBytes + Sums::Bytes(chunks);
  }
};

// The fragments of 32 columns.
template <typename S>
struct FewFragments {
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
      cuda::LoadMatrices(x + static_cast<uint32_t>(octet * 8 * kFewPitch * 2 + block * 64), b[octet]);
    }
  }
  __device__ void Multiply(float (&sums)[S::kOwn][4]) const {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int octet = 0; octet < S::kOwn; ++octet) {
        cuda::MultiplyAdd16x8x16(sums[octet], a[step], b[octet][2 * step], b[octet][2 * step + 1]);
      }
    }
  }
};

// All of a launch's kernel but for what may follow it. `shared`: FewShape::SharedBytes, 128-byte aligned.
template <typename S>
__device__ void FewBlock(const FewArgs& args, uint8_t* shared) {
  const int chunk = static_cast<int>(blockIdx.y), chunks = static_cast<int>(gridDim.y);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int64_t first_column = int64_t{chunk} * args.chunk_columns;
  const int columns = static_cast<int>(min(int64_t{args.chunk_columns}, args.in - first_column));
  const uint32_t weights_at = cuda::SharedAddress(shared);
  const uint32_t x_at = weights_at + static_cast<uint32_t>(S::WeightBytes(args.chunk_columns));
  const typename S::Sums cluster(shared + S::WeightBytes(args.chunk_columns) + S::kRowBytes, chunk, chunks);
  if (args.y_chunks == nullptr) cluster.Begin();

  // Weights do not depend on the kernel ahead.
  constexpr int kBlockUnits = 4 / S::kUnits;  // blocks of a tile
  const int64_t tile = blockIdx.x / kBlockUnits;
  const int first_unit = static_cast<int>(first_column) / S::Tiles::kColumns, units = columns / S::Tiles::kColumns;
  const uint8_t* weights = args.tiles + (tile * (args.in / S::Tiles::kColumns) + first_unit) * 4 * kUnitBytes +
                           blockIdx.x % kBlockUnits * S::kUnits * kUnitBytes;
  constexpr int kPieces = S::kUnits * kUnitBytes / 16;  // side by side
  for (int i = thread; i < units * kPieces; i += S::kThreads) {
    cuda::CopyAsync16(weights_at + static_cast<uint32_t>(i) * 16,
                      weights + i / kPieces * (4 * kUnitBytes) + i % kPieces * 16, true);
  }
  uint32_t chunk_scale = 0;  // lane l: of columns 32 l of the chunk
  if constexpr (S::kIsFp8) {
    const int64_t scale_row = tile * 2 + (blockIdx.x % kBlockUnits * S::kUnits + warp % S::kUnits) / 2;
    if (lane < units) chunk_scale = args.scales[scale_row * (args.in / 32) + first_unit + lane];
  }
  cuda::LetNextBegin();

  // How many rows live is not waited for: what lies beyond them is multiplied into outputs that nobody stores.
  const int64_t first_row = int64_t{blockIdx.z} * S::kRows;
  const int readable = static_cast<int>(min(int64_t{S::kRows}, args.max_rows - first_row));
  const __nv_bfloat16* x = args.x + blockIdx.x / args.group_blocks * args.in + first_column;
  constexpr int kRowPieces = int{kChunk} / 8;

  cuda::WaitForPrevious();
  const int piece = thread % kRowPieces;
  if (piece < columns / 8) {
#pragma unroll 8
    for (int row = thread / kRowPieces; row < S::kRows; row += S::kThreads / kRowPieces) {
      const bool live = row < readable;
      cuda::CopyAsync16(x_at + static_cast<uint32_t>(row * kFewPitch + piece * 8) * 2,
                        live ? x + (first_row + row) * args.x_stride + piece * 8 : args.x, live);
    }
  }
  cuda::CommitCopies();
  const int rows = static_cast<int>(min(int64_t{S::kRows}, int64_t{*args.rows} - first_row));  // may be below 1
  cuda::WaitForCopies<0>();
  __syncthreads();

  const int unit = warp % S::kUnits, group = warp / S::kUnits;
  const bool works = group < S::kGroups && group * S::kOwn * 8 < readable;
  float sums[S::kOwn][4] = {};
  if (works) {
    const uint8_t* own_weights = shared + unit * kUnitBytes + lane * 16;
    const uint32_t own_x =
        x_at + static_cast<uint32_t>((group * S::kOwn * 8 + lane % S::kMatrixRows) * kFewPitch + lane / 8 * 8) * 2;
    const int blocks = columns / 32;
    const auto scale = [&](int block) { return S::kIsFp8 ? __shfl_sync(0xFFFFFFFFu, chunk_scale, block) : 0u; };
    FewFragments<S> two[2];
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
      const int output = unit * kFewUnitOutputs + lane / 4 + i / 2 % 2 * 8;
      if (row >= rows) continue;
      const float sum = sums[i / 4][i % 4];
      if (args.y_chunks == nullptr) {
        cluster.Put(row, output, sum);
      } else if (const int64_t column = int64_t{blockIdx.x} * S::kOutputs + output; column < args.to.out) {
        args.y_chunks[(chunk * args.max_rows + first_row + row) * args.to.out + column] = sum;
      }
    }
  }
  if (args.y_chunks == nullptr) {
    cluster.template Finish<S::kThreads>(args.to, first_row, rows, int64_t{blockIdx.x} * S::kOutputs);
  }
}

template <typename S>
FewArgs FewArgsOf(const LinearSm90Params& p) {
  return {p.rows,
          p.x,
          p.x_stride,
          p.weight.tiles,
          p.weight.scales,
          p.weight.in,
          static_cast<int>(LinearChunkColumns(p.weight.in)),
          static_cast<unsigned>(LinearGroupTiles(p) * (4 / S::kUnits)),
          {p.weight.out, p.round_activations, p.y_bf16, p.y_float, p.y_stride},
          p.y_chunks,
          p.max_rows};
}
template <typename S>
cuda::Launch FewLaunch(const LinearSm90Params& p, cudaStream_t stream) {
  const auto chunks = static_cast<unsigned>(LinearChunks(p.weight.in));
  const int columns = static_cast<int>(LinearChunkColumns(p.weight.in));
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>((p.weight.out + S::kOutputs - 1) / S::kOutputs), chunks,
                     static_cast<unsigned>((p.max_rows + S::kRows - 1) / S::kRows));
  launch.block = dim3(S::kThreads);
  if (p.y_chunks == nullptr) launch.cluster = dim3(1, chunks, 1);
  launch.shared_bytes =
      static_cast<size_t>(S::SharedBytes(columns, p.y_chunks == nullptr ? static_cast<int>(chunks) : 1));
  launch.stream = stream;
  return launch;
}

}  // namespace senko::ops::sm90
