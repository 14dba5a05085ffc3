// The stream of few rows: 128 outputs (two tiles) times a chunk of K are a unit of work, and a block goes through its
// units without a pause. A producer warp brings weights and rows into a ring of shared memory, four warps multiply 16
// outputs of either tile each with mma.sync, so that a row's fragment serves two of the weights'. Sums of a chunk come
// from zero, by steps of 16 columns in order (linear_sm90.h).
//
// What bounds it: the weights' bandwidth, and about half as much the instructions: of 256 e2m1 weights 13 expand them
// and 2 multiply, where memory allows 30 issue slots.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cuda/ptx.cuh"
#include "ops/experts/expert_list_sm90.cuh"
#include "ops/linear/tiles_sm90.cuh"

namespace senko::ops::sm90 {

inline constexpr int kStreamConsumers = 128, kStreamThreads = kStreamConsumers + 32;
inline constexpr int kUnitTiles = 2;
inline constexpr int kStageTileBytes = 8192;  // of one tile: four blocks of Tiles::kColumns columns
inline constexpr int kStageScaleBytes = 512;  // of one tile in e2m1
inline constexpr int kStageScalesAt = kUnitTiles * kStageTileBytes;
inline constexpr int kStageRowsAt = kStageScalesAt + kUnitTiles * kStageScaleBytes;

// kOctets: blocks of 8 rows that an item may have; kSharedOctets: that the shared expert, in e4m3, may have.
template <int kOctets_, int kSharedOctets_>
struct StreamShape {
  static constexpr int kOctets = kOctets_, kSharedOctets = kSharedOctets_;
  // Blocks of Tiles::kColumns columns in a stage; fewer where rows would take more than the weights.
  template <typename Tiles>
  static constexpr int kBlocks = std::is_same_v<Tiles, Fp8Tiles> && (kOctets > 1 || kSharedOctets > 1) ? 2 : 4;
  // Bytes from row to row of a stage: odd in 16 bytes, so that ldmatrix meets no bank twice.
  template <typename Tiles>
  static constexpr int kPitch = kBlocks<Tiles>* Tiles::kColumns * 2 + 16;
  static constexpr int kRowBytes =
      8 * std::max(kOctets * std::max(kPitch<Fp4Tiles>, kPitch<Fp8Tiles>), kSharedOctets* kPitch<Fp8Tiles>);
  static constexpr int kStageBytes = kStageRowsAt + kRowBytes;
  static constexpr int kResultBytes = 8 * kWideResultPitch * 2;
  static constexpr int kMostBytes = 113 * 1024;  // of two blocks of a multiprocessor
  static constexpr int kStages = (kMostBytes - kResultBytes) / (kStageBytes + 16);
  static constexpr int kResultsAt = kStages * kStageBytes;
  static constexpr int kBarriersAt = kResultsAt + kResultBytes;
  static constexpr int kSharedBytes = kBarriersAt + 2 * kStages * 8;
  static_assert(kStageBytes % 128 == 0 && kBarriersAt % 16 == 0 && kStages >= 3);
};

// The place in the ring of one who goes round it.
template <typename Shape>
struct RingPlace {
  uint32_t slot = 0, parity = 0;
  __device__ void Advance() {
    if (++slot == Shape::kStages) slot = 0, parity ^= 1;
  }
  __device__ uint32_t At(uint32_t shared) const { return shared + slot * Shape::kStageBytes; }
  __device__ uint32_t Full(uint32_t shared) const { return shared + Shape::kBarriersAt + slot * 8; }
  __device__ uint32_t Empty(uint32_t shared) const { return Full(shared) + Shape::kStages * 8; }
};

// How one list's products fall into units: item by item, two tiles by two tiles, chunk by chunk.
template <typename Tiles_>
struct StreamUnits {
  using Tiles = Tiles_;
  int tile_blocks, chunk_blocks, chunks, tile_pairs;

  __device__ explicit StreamUnits(const ExpertList& l)
      : tile_blocks(static_cast<int>(l.in) / Tiles::kColumns),
        chunk_blocks(l.chunk_columns / Tiles::kColumns),
        chunks((tile_blocks + chunk_blocks - 1) / chunk_blocks),
        tile_pairs((static_cast<int>(l.num_tiles) + 1) / 2) {}
  __device__ int OfItem() const { return tile_pairs * chunks; }
};

struct StreamUnit {
  int job;        // item * tile_pairs + pair of tiles
  int tile_pair;  // of the item
  int item;
  int chunk;
  int first_block, blocks;  // of the tile, of Tiles::kColumns columns
};
template <typename Tiles>
__device__ StreamUnit UnitAt(const StreamUnits<Tiles>& units, int u) {
  StreamUnit unit;
  unit.job = u / units.chunks;
  unit.chunk = u - unit.job * units.chunks;
  unit.item = unit.job / units.tile_pairs;
  unit.tile_pair = unit.job - unit.item * units.tile_pairs;
  unit.first_block = unit.chunk * units.chunk_blocks;
  unit.blocks = min(units.chunk_blocks, units.tile_blocks - unit.first_block);
  return unit;
}

// One thread: the weights of a unit's blocks from `at` on, at most a stage of them, to the ring's place.
template <typename Shape, typename Tiles>
__device__ void BringWeights(const ExpertList& l, int64_t expert, const StreamUnit& unit, int at,
                             const RingPlace<Shape>& place, uint32_t shared) {
  constexpr bool kIsFp4 = std::is_same_v<Tiles, Fp4Tiles>;
  const uint32_t to = place.At(shared), full = place.Full(shared);
  const int first = unit.first_block + at, blocks = min(Shape::template kBlocks<Tiles>, unit.blocks - at);
  const int tiles = min(kUnitTiles, static_cast<int>(l.num_tiles) - kUnitTiles * unit.tile_pair);
  const auto bytes = static_cast<uint32_t>(blocks * 4 * kUnitBytes);
  const auto scale_bytes = static_cast<uint32_t>(kIsFp4 ? blocks * 128 : 0);
  cuda::ArriveExpecting(full, static_cast<uint32_t>(tiles) * (bytes + scale_bytes));
  for (int t = 0; t < tiles; ++t) {
    const int64_t tile = expert * l.num_tiles + kUnitTiles * unit.tile_pair + t;
    cuda::BulkCopy(to + static_cast<uint32_t>(t * kStageTileBytes),
                   l.tiles + tile * l.tile_bytes + int64_t{first} * 4 * kUnitBytes, bytes, full);
    if constexpr (kIsFp4) {
      cuda::BulkCopy(to + static_cast<uint32_t>(kStageScalesAt + t * kStageScaleBytes),
                     l.scales + tile * l.tile_scale_bytes + first * 128, scale_bytes, full);
    }
  }
}

// A warp: the live rows' columns of the same blocks. Those beyond `rows` are left as they are: what is multiplied with
// them reaches no other row's sums and is stored nowhere. row_of(r): where row r begins, in 16 bytes from l.x; all
// lanes ask together.
template <typename Shape, typename Tiles, typename RowOffset>
__device__ void BringRows(const ExpertList& l, const StreamUnit& unit, int at, int rows, const RowOffset& row_of,
                          uint32_t stage) {
  constexpr int kBlocks = Shape::template kBlocks<Tiles>, kPitch = Shape::template kPitch<Tiles>;
  constexpr int kPieces = kBlocks * Tiles::kColumns / 8;  // of a row, 16 bytes each
  static_assert(32 % kPieces == 0);
  const int lane = static_cast<int>(threadIdx.x) % 32, piece = lane % kPieces;
  const int first = unit.first_block + at, blocks = min(kBlocks, unit.blocks - at);
  const bool works = piece < blocks * (Tiles::kColumns / 8);
  const uint8_t* from = reinterpret_cast<const uint8_t*>(l.x) + (int64_t{first} * (Tiles::kColumns / 8) + piece) * 16;
  const uint32_t to = stage + static_cast<uint32_t>(kStageRowsAt + piece * 16);
  for (int base = 0; base < rows; base += 32 / kPieces) {
    const int row = base + lane / kPieces;
    const uint32_t offset = row_of(row);
    if (works && row < rows) {
      cuda::CopyAsync16(to + static_cast<uint32_t>(row * kPitch), from + int64_t{offset} * 16, true);
    }
  }
}

// The sums of a warp: [octet][tile][row 2 t, 2 t + 1 of output g, then of g + 8].
template <int kOctets>
using StreamSums = float[kOctets][kUnitTiles][4];

// A warp's sums of its first kUsed octets: += stage. `ring`: shared memory, `stage`: bytes from there on. fp8_scales:
// lane b has the scale of the chunk's block b, tile by tile; first: the stage's first block in the chunk.
template <typename Shape, typename Tiles, int kUsed, int kOctets>
__device__ __forceinline__ void MultiplyStage(const uint8_t* ring, uint32_t stage, int warp, int lane, int blocks,
                                              const uint32_t (&fp8_scales)[kUnitTiles], int first,
                                              StreamSums<kOctets>& sums) {
  constexpr int kBlocks = Shape::template kBlocks<Tiles>, kPitch = Shape::template kPitch<Tiles>;
  const uint8_t* units = ring + stage + warp * kUnitBytes + lane * 16;
  const uint8_t* scales = ring + stage + kStageScalesAt + warp * 32 + lane / 4 * 4;
  // Lane l names row l % 8, columns 8 (l / 8) on, of four neighbouring 8 x 8 matrices.
  const uint32_t rows =
      cuda::SharedAddress(ring) + stage + static_cast<uint32_t>(kStageRowsAt + lane % 8 * kPitch + lane / 8 * 16);
  const auto two_steps = [&](const uint32_t(&a)[kUnitTiles][2][4], int column) {
#pragma unroll
    for (int o = 0; o < kUsed; ++o) {
      uint32_t b[4];
      cuda::LoadMatrices(rows + static_cast<uint32_t>(o * 8 * kPitch + column * 2), b);
#pragma unroll
      for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int t = 0; t < kUnitTiles; ++t) {
          cuda::MultiplyAdd16x8x16(sums[o][t], a[t][step], b[2 * step], b[2 * step + 1]);
        }
      }
    }
  };
  const auto block = [&](int i) {
    uint4 unit[kUnitTiles];
    uint32_t a[kUnitTiles][2][4], codes[kUnitTiles];
#pragma unroll
    for (int t = 0; t < kUnitTiles; ++t) {
      unit[t] = *reinterpret_cast<const uint4*>(units + t * kStageTileBytes + i * 4 * kUnitBytes);
    }
    if constexpr (std::is_same_v<Tiles, Fp8Tiles>) {
#pragma unroll
      for (int t = 0; t < kUnitTiles; ++t) {
        const uint32_t multiplier = Tiles::Multiplier(__shfl_sync(0xFFFFFFFFu, fp8_scales[t], first + i));
        Tiles::Expand(unit[t], 0, multiplier, a[t][0]);
        Tiles::Expand(unit[t], 1, multiplier, a[t][1]);
      }
      two_steps(a, i * Tiles::kColumns);
    } else {
#pragma unroll
      for (int t = 0; t < kUnitTiles; ++t) {
        codes[t] = *reinterpret_cast<const uint32_t*>(scales + t * kStageScaleBytes + i * 128);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int t = 0; t < kUnitTiles; ++t) {
          const uint32_t of_g = Tiles::Multiplier(codes[t], half), of_g8 = Tiles::Multiplier(codes[t], half + 2);
          Tiles::Expand(half == 0 ? unit[t].x : unit[t].z, of_g, of_g8, a[t][0]);
          Tiles::Expand(half == 0 ? unit[t].y : unit[t].w, of_g, of_g8, a[t][1]);
        }
        two_steps(a, i * Tiles::kColumns + half * 32);
      }
    }
  };
  if (blocks == kBlocks) {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) block(i);
  } else {
#pragma unroll 1
    for (int i = 0; i < blocks; ++i) block(i);
  }
}

}  // namespace senko::ops::sm90
