// The product of many rows: 256 outputs x up to 128 rows, all of K. One warpgroup brings rows and weights into a ring
// of shared memory, two expand the weights of 128 outputs each in registers, as operand A, and multiply.
//
// A chunk of K is summed from zero and added to the total at its end (canonical arithmetic, linear_sm90.h). The sums of
// a chunk take the registers, so that totals lie in shared memory: 128 outputs instead halve the registers, and read
// the rows twice as often, which the second-level cache does not serve fast enough.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cuda/ptx.cuh"
#include "ops/experts/expert_list_sm90.cuh"
#include "ops/linear/expand_sm90.cuh"
#include "ops/linear/tiles_sm90.cuh"
#include "ops/linear/wgmma.cuh"

namespace senko::ops::sm90 {

inline constexpr int kPairTiles = 2;  // tiles of a consumer: gate and up of the same columns, or neighbours of down
inline constexpr int kManyPairs = 2;  // consumers
inline constexpr int kManyRows = 128;
inline constexpr int kManyColumns = 64;  // of a stage
inline constexpr int kManyThreads = 128 + kManyPairs * 128;
inline constexpr int kManyProducerRegisters = 40, kManyConsumerRegisters = 232;

// Shared memory: the ring, totals or results, barriers.
template <typename Tiles>
struct ManyShape {
  static constexpr bool kIsFp8 = std::is_same_v<Tiles, Fp8Tiles>;
  static constexpr int kTiles = kManyPairs * kPairTiles;
  static constexpr int kRowBytes = kManyRows * kManyColumns * 2;
  static constexpr int kTileBytes = kManyColumns / Tiles::kColumns * 4 * kUnitBytes;
  static constexpr int kScaleBytes = kIsFp8 ? 0 : 128;  // of a tile
  static constexpr int kStageBytes = kRowBytes + kTiles * (kTileBytes + kScaleBytes);
  static constexpr int kTotalBytes = kPairTiles * kTileOutputs * kManyRows * 4;  // of a consumer
  static constexpr int kMostBytes = 227 * 1024;
  static constexpr int kStages = (kMostBytes - kManyPairs * kTotalBytes) / (kStageBytes + 16);
  static constexpr int kWeightsAt = kStages * kRowBytes, kScalesAt = kWeightsAt + kStages * kTiles * kTileBytes;
  static constexpr int kTotalsAt = kScalesAt + kStages * kTiles * kScaleBytes;
  static constexpr int kBarriersAt = kTotalsAt + kManyPairs * kTotalBytes;
  static constexpr int kSharedBytes = kBarriersAt + kStages * 16;
  static_assert(kSharedBytes <= kMostBytes && kManyRows * kWideResultPitch * 2 <= kTotalBytes);
};

template <typename Tiles>
struct ManyPlace {
  using Shape = ManyShape<Tiles>;
  uint32_t shared;  // 1024-byte aligned: the rows' swizzle counts from there
  uint32_t slot = 0, parity = 0;
  __device__ void Advance() {
    if (++slot == Shape::kStages) slot = 0, parity ^= 1;
  }
  __device__ uint32_t Rows() const { return shared + slot * Shape::kRowBytes; }
  __device__ uint32_t Weights(int tile) const {
    return shared + Shape::kWeightsAt + (slot * Shape::kTiles + static_cast<uint32_t>(tile)) * Shape::kTileBytes;
  }
  __device__ uint32_t Scales(int tile) const {
    return shared + Shape::kScalesAt + (slot * Shape::kTiles + static_cast<uint32_t>(tile)) * Shape::kScaleBytes;
  }
  __device__ uint32_t Full() const { return shared + Shape::kBarriersAt + slot * 8; }
  __device__ uint32_t EmptyOf(uint32_t at) const { return shared + Shape::kBarriersAt + (Shape::kStages + at) * 8; }
  __device__ uint32_t Empty() const { return EmptyOf(slot); }
};

// The producer: an item's rows, and the weights of `tiles` tiles, `first` the first, of all experts' counted.
// row_of(r): where row r begins, in 16 bytes from l.x, or kNoRow, which is zeros; of the first `rows` rows, a multiple
// of 16.
template <typename Tiles, typename RowOf>
__device__ void ManyProduce(const ExpertList& l, int64_t first, int tiles, int rows, const RowOf& row_of,
                            ManyPlace<Tiles>& place) {
  using Shape = ManyShape<Tiles>;
  constexpr int kEach = kManyRows / 16;  // a thread brings one 16-byte column of every sixteenth row
  const int thread = static_cast<int>(threadIdx.x), row = thread / 8, column = thread % 8;
  const uint32_t to = static_cast<uint32_t>(row * 128 + (column ^ row % 8) * 16);
  uint32_t from[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) from[i] = i * 16 < rows ? row_of(row + i * 16) : kNoRow;
  const uint8_t* at_column = reinterpret_cast<const uint8_t*>(l.x) + column * 16;
  const uint8_t *weights = l.tiles + first * l.tile_bytes, *scales = l.scales + first * l.tile_scale_bytes;
  const int stages = static_cast<int>(l.in / kManyColumns);
  for (int k = 0; k < stages; ++k) {
    const uint32_t full = place.Full();
    cuda::WaitBarrier(place.Empty(), place.parity);
    if (thread == 0) {
      cuda::ArriveExpecting(full, static_cast<uint32_t>(tiles * (Shape::kTileBytes + Shape::kScaleBytes)));
      for (int t = 0; t < tiles; ++t) {
        cuda::BulkCopy(place.Weights(t), weights + t * l.tile_bytes, Shape::kTileBytes, full);
        if constexpr (!Shape::kIsFp8) {
          cuda::BulkCopy(place.Scales(t), scales + t * l.tile_scale_bytes, Shape::kScaleBytes, full);
        }
      }
      weights += Shape::kTileBytes;
      scales += Shape::kScaleBytes;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i * 16 >= rows) break;
      const bool live = from[i] != kNoRow;
      cuda::CopyAsync16(place.Rows() + to + static_cast<uint32_t>(i * 16 * 128),
                        at_column + (live ? int64_t{from[i]} * 16 : 0), live);
    }
    at_column += kManyColumns * 2;
    cuda::ArriveAfterCopies(full);
    place.Advance();
  }
}

// A consumer's sums of kRows rows: [tile]: element 4 j + 2 h + i is output warp * 16 + g + 8 h, row 8 j + 2 t + i.
template <int kRows>
using ManySums = float[kPairTiles][kRows / 2];

// Sums += those of the chunks before, or zero; kept where `keeps`. `totals`: this thread's, every 128th.
template <int kRows>
__device__ void AddTotals(float4* totals, bool first, bool keeps, ManySums<kRows>& sums) {
#pragma unroll
  for (int t = 0; t < kPairTiles; ++t) {
#pragma unroll
    for (int i = 0; i < kRows / 8; ++i) {
      float4* at = totals + (t * (kRows / 8) + i) * 128;
      float* four = sums[t] + 4 * i;
      const float4 before = first ? make_float4(0, 0, 0, 0) : *at;
      four[0] = __fadd_rn(before.x, four[0]);
      four[1] = __fadd_rn(before.y, four[1]);
      four[2] = __fadd_rn(before.z, four[2]);
      four[3] = __fadd_rn(before.w, four[3]);
      if (keeps) *at = make_float4(four[0], four[1], four[2], four[3]);
    }
  }
}

// Consumer `pair`: all of K. first: of its tiles, of all experts' counted; `tiles`: how many it has, which may be none.
template <int kRows, typename Tiles>
__device__ void ManyConsume(const ExpertList& l, int pair, int64_t first, int tiles, float4* totals,
                            ManyPlace<Tiles>& place, ManySums<kRows>& sums) {
  using Shape = ManyShape<Tiles>;
  const int thread = static_cast<int>(threadIdx.x) % 128, warp = thread / 32, lane = thread % 32;
  const int stages = static_cast<int>(l.in / kManyColumns), chunk_stages = l.chunk_columns / kManyColumns;
  const int64_t blocks = l.in / 32;
  uint32_t a[kPairTiles][2][4];  // of half a stage: [tile][step]
  uint32_t chunk_scales[kPairTiles] = {};
  int chunk_begin = 0;
  uint32_t previous = 0;
  for (int k = 0; k < stages; ++k) {
    if (k == chunk_begin + chunk_stages) {
      WgmmaWait<0>();
      AddTotals<kRows>(totals, chunk_begin == 0, true, sums);
      chunk_begin = k;
    }
    if (Shape::kIsFp8 && k == chunk_begin) {
      const int64_t block = int64_t{k} * 2 + lane;
#pragma unroll
      for (int t = 0; t < kPairTiles; ++t) {
        chunk_scales[t] =
            t < tiles && block < blocks ? l.scales[(first + t) * l.tile_scale_bytes + warp / 2 * blocks + block] : 0;
      }
    }
    cuda::WaitBarrier(place.Full(), place.parity);
    cuda::FenceAsyncProxy();  // the rows came by ordinary copies
    uint32_t fp4_scales[kPairTiles] = {};
    if constexpr (!Shape::kIsFp8) {
#pragma unroll
      for (int t = 0; t < kPairTiles; ++t) {
        asm volatile("ld.shared.u32 %0, [%1];"
                     : "=r"(fp4_scales[t])
                     : "r"(place.Scales(pair * kPairTiles + t) + static_cast<uint32_t>(warp * 32 + lane / 4 * 4)));
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int t = 0; t < kPairTiles; ++t) {
        WgmmaWait<1>();  // the group that read this tile's registers
        if (half == 0 && t == 1 && k > 0) cuda::Arrive(place.EmptyOf(previous));
        uint32_t fp8_scale = 0;
        if constexpr (Shape::kIsFp8) {
          fp8_scale = __shfl_sync(0xFFFFFFFFu, chunk_scales[t], (k - chunk_begin) * 2 + half);
        }
        ExpandShared<Tiles>(place.Weights(pair * kPairTiles + t) + static_cast<uint32_t>(warp * kUnitBytes + lane * 16),
                            fp4_scales[t], fp8_scale, half, a[t]);
        WgmmaFence();
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          Wgmma<kRows>::Run(sums[t], a[t][step],
                            SwizzledRows(place.Rows() + static_cast<uint32_t>((half * 2 + step) * 32)),
                            k != chunk_begin || half + step > 0);
        }
        WgmmaCommit();
      }
    }
    previous = place.slot;
    place.Advance();
  }
  WgmmaWait<0>();
  cuda::Arrive(place.EmptyOf(previous));
#pragma unroll
  for (int t = 0; t < kPairTiles; ++t) WgmmaFenceRegisters(sums[t]);
  AddTotals<kRows>(totals, chunk_begin == 0, false, sums);
}

// A consumer's results [row][output of both tiles], rounded, where its totals were.
__device__ inline void SyncPair(int pair) {
  if (pair == 0) {
    asm volatile("bar.sync 1, 128;" ::: "memory");
  } else {
    asm volatile("bar.sync 2, 128;" ::: "memory");
  }
}
template <int kRows>
__device__ void RoundResults(int pair, __nv_bfloat16* results, const ManySums<kRows>& sums) {
  const int thread = static_cast<int>(threadIdx.x) % 128, warp = thread / 32, lane = thread % 32;
  __nv_bfloat16* at = results + lane % 4 * 2 * kWideResultPitch + warp * 16 + lane / 4;
  SyncPair(pair);
#pragma unroll
  for (int t = 0; t < kPairTiles; ++t) {
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      at[(i / 4 * 8 + i % 2) * kWideResultPitch + t * kTileOutputs + i / 2 % 2 * 8] = __float2bfloat16_rn(sums[t][i]);
    }
  }
  SyncPair(pair);
}

}  // namespace senko::ops::sm90
