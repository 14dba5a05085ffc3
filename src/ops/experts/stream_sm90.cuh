// The stream of few rows: 128 outputs (two tiles) times a chunk of K are a unit of work, and a block goes through its
// units without a pause. A producer warp brings weights and rows into a ring of shared memory, eight warps multiply 16
// outputs each with mma.sync. Sums of a chunk come from zero, by steps of 16 columns in order (linear_sm90.h).
//
// What bounds it: the weights' bandwidth, closely followed by the instructions that expand e2m1.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cuda/ptx.cuh"
#include "ops/experts/expert_list_sm90.cuh"
#include "ops/linear/tiles_sm90.cuh"

namespace senko::ops::sm90 {

inline constexpr int kStreamConsumers = 256, kStreamThreads = kStreamConsumers + 32;
inline constexpr int kStreamRows = 8;
inline constexpr int kStageBlocks = 4;                                 // of Tiles::kColumns columns
inline constexpr int kStageTileBytes = kStageBlocks * 4 * kUnitBytes;  // of one tile: 8 KB
inline constexpr int kStageScaleBytes = kStageBlocks * 128;            // of one tile in e2m1
inline constexpr int kStageScalesAt = 2 * kStageTileBytes;
inline constexpr int kStageRowsAt = kStageScalesAt + 2 * kStageScaleBytes;

// Bytes from row to row of a stage: odd in 16 bytes, so that ldmatrix meets no bank twice.
template <typename Tiles>
inline constexpr int kStagePitch = kStageBlocks* Tiles::kColumns * 2 + 16;

// kOctets: blocks of 8 rows that the shared expert, in e4m3, may have.
template <int kOctets>
struct StreamShape {
  static constexpr int kFp4Rows = kStreamRows * kStagePitch<Fp4Tiles>;
  static constexpr int kFp8Rows = kOctets * 8 * kStagePitch<Fp8Tiles>;
  static constexpr int kStageBytes = kStageRowsAt + (kFp4Rows > kFp8Rows ? kFp4Rows : kFp8Rows);
  static constexpr int kStages = 3;  // two blocks of a multiprocessor have 68 KB on the way
  static constexpr int kResultsAt = kStages * kStageBytes;
  static constexpr int kBarriersAt = kResultsAt + kStreamRows * kWideResultPitch * 2;
  static constexpr int kSharedBytes = kBarriersAt + 2 * kStages * 8;
  static_assert(kStageBytes % 128 == 0 && kBarriersAt % 16 == 0);
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
  int stages;
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
  unit.stages = (unit.blocks + kStageBlocks - 1) / kStageBlocks;
  return unit;
}

// One thread: the weights of stage s of a unit to shared address `to`.
template <typename Tiles>
__device__ void BringWeights(const ExpertList& l, int64_t expert, const StreamUnit& unit, int s, uint32_t to,
                             uint32_t full) {
  constexpr bool kIsFp4 = std::is_same_v<Tiles, Fp4Tiles>;
  const int first = unit.first_block + s * kStageBlocks, blocks = min(kStageBlocks, unit.blocks - s * kStageBlocks);
  const int tiles = min(2, static_cast<int>(l.num_tiles) - 2 * unit.tile_pair);
  const auto bytes = static_cast<uint32_t>(blocks * 4 * kUnitBytes);
  const auto scale_bytes = static_cast<uint32_t>(kIsFp4 ? blocks * 128 : 0);
  cuda::ArriveExpecting(full, static_cast<uint32_t>(tiles) * (bytes + scale_bytes));
  for (int t = 0; t < tiles; ++t) {
    const int64_t tile = expert * l.num_tiles + 2 * unit.tile_pair + t;
    cuda::BulkCopy(to + static_cast<uint32_t>(t * kStageTileBytes),
                   l.tiles + tile * l.tile_bytes + int64_t{first} * 4 * kUnitBytes, bytes, full);
    if constexpr (kIsFp4) {
      cuda::BulkCopy(to + static_cast<uint32_t>(kStageScalesAt + t * kStageScaleBytes),
                     l.scales + tile * l.tile_scale_bytes + first * 128, scale_bytes, full);
    }
  }
}

// A warp: the live rows of stage s. Those beyond `rows` are left as they are: what is multiplied with them reaches no
// other row's sums and is stored nowhere. row_of(r): where row r begins, in 16 bytes from l.x; all lanes ask together.
template <typename Tiles, typename RowOffset>
__device__ void BringRows(const ExpertList& l, const StreamUnit& unit, int s, int rows, const RowOffset& row_of,
                          uint32_t stage) {
  constexpr int kPieces = kStageBlocks * Tiles::kColumns / 8;  // of a row, 16 bytes each: 32 or 16
  static_assert(32 % kPieces == 0);
  const int lane = static_cast<int>(threadIdx.x) % 32, piece = lane % kPieces;
  const int first = unit.first_block + s * kStageBlocks, blocks = min(kStageBlocks, unit.blocks - s * kStageBlocks);
  const bool works = piece < blocks * (Tiles::kColumns / 8);
  const uint8_t* from = reinterpret_cast<const uint8_t*>(l.x) + (int64_t{first} * (Tiles::kColumns / 8) + piece) * 16;
  const uint32_t to = stage + static_cast<uint32_t>(kStageRowsAt + piece * 16);
  for (int base = 0; base < rows; base += 32 / kPieces) {
    const int row = base + lane / kPieces;
    const uint32_t offset = row_of(row);
    if (works && row < rows) {
      cuda::CopyAsync16(to + static_cast<uint32_t>(row * kStagePitch<Tiles>), from + int64_t{offset} * 16, true);
    }
  }
}

// A warp's sums of 16 outputs: += stage. `ring`: shared memory, `stage`: bytes from there on. fp8_scales: lane b has
// the scale of the chunk's block b; first: the stage's first block in the chunk.
template <typename Tiles, int kOctets>
__device__ __forceinline__ void MultiplyStage(const uint8_t* ring, uint32_t stage, int warp, int lane, int blocks,
                                              uint32_t fp8_scales, int first, float (&sums)[kOctets][4]) {
  constexpr int kPitch = kStagePitch<Tiles>;
  const uint8_t* units = ring + stage + warp / 4 * kStageTileBytes + warp % 4 * kUnitBytes + lane * 16;
  const uint8_t* scales = ring + stage + kStageScalesAt + warp / 4 * kStageScaleBytes + warp % 4 * 32 + lane / 4 * 4;
  // Lane l names row l % 8, columns 8 (l / 8) on, of four neighbouring 8 x 8 matrices.
  const uint32_t rows =
      cuda::SharedAddress(ring) + stage + static_cast<uint32_t>(kStageRowsAt + lane % 8 * kPitch + lane / 8 * 16);
  const auto two_steps = [&](const uint32_t(&a0)[4], const uint32_t(&a1)[4], int column) {
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      uint32_t b[4];
      cuda::LoadMatrices(rows + static_cast<uint32_t>(o * 8 * kPitch + column * 2), b);
      cuda::MultiplyAdd16x8x16(sums[o], a0, b[0], b[1]);
      cuda::MultiplyAdd16x8x16(sums[o], a1, b[2], b[3]);
    }
  };
  const auto block = [&](int i) {
    const uint4 unit = *reinterpret_cast<const uint4*>(units + i * 4 * kUnitBytes);
    uint32_t a[2][4];
    if constexpr (std::is_same_v<Tiles, Fp8Tiles>) {
      const uint32_t multiplier = Tiles::Multiplier(__shfl_sync(0xFFFFFFFFu, fp8_scales, first + i));
      Tiles::Expand(unit, 0, multiplier, a[0]);
      Tiles::Expand(unit, 1, multiplier, a[1]);
      two_steps(a[0], a[1], i * Tiles::kColumns);
    } else {
      const uint32_t codes = *reinterpret_cast<const uint32_t*>(scales + i * 128);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t of_g = Tiles::Multiplier(codes, half), of_g8 = Tiles::Multiplier(codes, half + 2);
        Tiles::Expand(half == 0 ? unit.x : unit.z, of_g, of_g8, a[0]);
        Tiles::Expand(half == 0 ? unit.y : unit.w, of_g, of_g8, a[1]);
        two_steps(a[0], a[1], i * Tiles::kColumns + half * 32);
      }
    }
  };
  if (blocks == kStageBlocks) {
#pragma unroll
    for (int i = 0; i < kStageBlocks; ++i) block(i);
  } else {
#pragma unroll 1
    for (int i = 0; i < blocks; ++i) block(i);
  }
}

}  // namespace senko::ops::sm90
