// One to 16 rows, where nothing but the weights' bandwidth counts: a block takes one chunk of K of 64 outputs, each of
// its four warps streams 16 outputs' units through registers, kStreamDepth ahead, into mma.sync; the blocks of a
// cluster, one per chunk, put the chunks' sums together in their order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "cuda/ptx.cuh"
#include "ops/linear/cluster_sums_sm90.cuh"
#include "ops/linear/linear.h"
#include "ops/linear/tiles_sm90.cuh"

namespace senko::ops::sm90 {

constexpr int kStreamThreads = 128;
constexpr int kStreamDepth = 8;
constexpr int kStreamPitch = int{kChunk} + 8;  // elements of a staged row; odd in 16 bytes: no bank conflicts

struct StreamArgs {
  const int32_t* rows;
  int64_t max_rows;
  const __nv_bfloat16* x;
  int64_t x_stride;
  const uint8_t* tiles;
  const uint8_t* scales;
  int64_t in;
  int chunk_columns;
  unsigned group_tiles;
  Outputs to;
};

template <int kRows>
using StreamSums = ClusterSums<kRows, kTileOutputs>;
template <int kRows>
constexpr int StreamSharedBytes(int chunks) {
  return kRows * kStreamPitch * 2 + StreamSums<kRows>::Bytes(chunks);
}

// The multiplier codes of a warp's units: one byte for 32 columns of e4m3, which the lanes hold for the whole chunk;
// four for a lane's two outputs and 64 columns of e2m1, which travel with the unit.
template <typename Tiles>
struct StreamScales {
  static constexpr bool kIsFp8 = std::is_same_v<Tiles, Fp8Tiles>;
  static constexpr bool kIsFp4 = std::is_same_v<Tiles, Fp4Tiles>;
  uint32_t mine = 0;
  const uint32_t* words = nullptr;
  __device__ StreamScales(const StreamArgs& a, int64_t tile, int warp, int lane, int first_unit, int units) {
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
__device__ inline void StreamFragments(const uint4& unit, uint32_t scale, int step, uint32_t (&a)[4]) {
  if constexpr (std::is_same_v<Tiles, Fp8Tiles>) {
    Tiles::Expand(unit, step, Tiles::Multiplier(scale), a);
  } else if constexpr (std::is_same_v<Tiles, Fp4Tiles>) {
    const uint32_t words[4] = {unit.x, unit.y, unit.z, unit.w};
    // Bytes 0 and 1: of output g, 32 columns each; 2 and 3: of g + 8.
    Tiles::Expand(words[step], Tiles::Multiplier(scale, step / 2), Tiles::Multiplier(scale, step / 2 + 2), a);
  } else {
    a[0] = unit.x, a[1] = unit.y, a[2] = unit.z, a[3] = unit.w;
  }
}

// kRows: 2, or a multiple of 8. The chunks' blocks are `first_block` on of the cluster. `ready` returns when the rows
// may be read; by all threads, as soon as the first weights are on their way. Gives how many rows of outputs this block
// has stored.
template <typename Tiles, int kRows, typename Ready>
__device__ int StreamBlock(const StreamArgs& args, uint8_t* shared, int64_t tile, int chunk, int chunks,
                           int first_block, int64_t first_row, const Ready& ready) {
  constexpr int kOctets = (kRows + 7) / 8, kMatrixRows = kRows < 8 ? kRows : 8;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t first_column = int64_t{chunk} * args.chunk_columns;
  const int columns = static_cast<int>(min(int64_t{args.chunk_columns}, args.in - first_column));
  const StreamSums<kRows> cluster(shared + kRows * kStreamPitch * 2, chunk, chunks, first_block);
  cluster.Begin();
  const int units = columns / Tiles::kColumns;
  const int first_unit = static_cast<int>(first_column / Tiles::kColumns);

  // Weights do not depend on the kernel ahead.
  const uint8_t* weights =
      args.tiles + ((tile * (args.in / Tiles::kColumns) + first_unit) * 4 + warp) * kUnitBytes + lane * 16;
  const StreamScales<Tiles> scales(args, tile, warp, lane, first_unit, units);
  uint4 ring[kStreamDepth];
  uint32_t ring_scales[kStreamDepth];
  const auto load = [&](int unit, int slot) {
    if (unit >= units) return;
    ring[slot] = cuda::LoadStreaming(weights + int64_t{unit} * 4 * kUnitBytes);
    ring_scales[slot] = scales.Ahead(unit);
  };
#pragma unroll
  for (int i = 0; i < kStreamDepth; ++i) load(i, i);
  cuda::LetNextBegin();  // so that its weights are on their way, too, as far as there is room

  // How many rows live is not waited for: what lies beyond them is multiplied into outputs that nobody stores.
  const int readable = static_cast<int>(min(int64_t{kRows}, args.max_rows - first_row));
  const uint32_t stage = cuda::SharedAddress(shared);
  const int piece = static_cast<int>(threadIdx.x);
  static_assert(kStreamThreads == int{kChunk} / 8);
  const __nv_bfloat16* x =
      args.x + first_row * args.x_stride + tile / args.group_tiles * args.in + first_column + piece * 8;

  ready();
  if (piece < columns / 8) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      cuda::CopyAsync16(stage + static_cast<uint32_t>(row * kStreamPitch + piece * 8) * 2, x, row < readable);
      if (row + 1 < readable) x += args.x_stride;
    }
  }
  cuda::CommitCopies();
  const int rows = static_cast<int>(min(int64_t{kRows}, int64_t{*args.rows} - first_row));  // may be below 1
  cuda::WaitForCopies<0>();
  __syncthreads();

  float sums[kOctets][4] = {};
  // Lane l names row l % 8, columns 8 (l / 8) on, of four neighbouring 8 x 8 matrices; of two where a unit is one step.
  // Of two rows all others are repetitions.
  const uint32_t x_lane =
      stage +
      static_cast<uint32_t>(lane % kMatrixRows * kStreamPitch + (Tiles::kSteps == 1 ? lane / 8 % 2 : lane / 8) * 8) * 2;
  for (int base = 0; base < units; base += kStreamDepth) {
#pragma unroll
    for (int i = 0; i < kStreamDepth; ++i) {
      const int unit = base + i;
      if (unit >= units) break;
      const uint32_t scale = scales.Now(unit, ring_scales[i]);
      uint32_t a[Tiles::kSteps][4];
#pragma unroll
      for (int step = 0; step < Tiles::kSteps; ++step) StreamFragments<Tiles>(ring[i], scale, step, a[step]);
      load(unit + kStreamDepth, i);
#pragma unroll
      for (int octet = 0; octet < kOctets; ++octet) {
        const uint32_t at = x_lane + static_cast<uint32_t>(octet * 8 * kStreamPitch + unit * Tiles::kColumns) * 2;
#pragma unroll
        for (int two = 0; two < (Tiles::kSteps + 1) / 2; ++two) {
          uint32_t b[4];
          cuda::LoadMatrices(at + static_cast<uint32_t>(two * 64), b);
          cuda::MultiplyAdd16x8x16(sums[octet], a[2 * two], b[0], b[1]);
          if constexpr (Tiles::kSteps > 1) cuda::MultiplyAdd16x8x16(sums[octet], a[2 * two + 1], b[2], b[3]);
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
  return cluster.template Finish<kStreamThreads>(args.to, first_row, rows, tile * kTileOutputs);
}

}  // namespace senko::ops::sm90
