// The product that the wide kernels share: 128 outputs x kRows rows, all of K. One warpgroup brings rows and weights
// into a ring of shared memory, two expand the weights in registers, as operand A, and multiply: 64 outputs each.
//
// A chunk of K is summed from zero and added to the total at its end (canonical arithmetic, linear_sm90.h).
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cuda/ptx.cuh"
#include "ops/linear/expand_sm90.cuh"
#include "ops/linear/tiles_sm90.cuh"
#include "ops/linear/wgmma.cuh"

namespace senko::ops::sm90 {

inline constexpr int kWideThreads = 384;
inline constexpr int kWideConsumers = 2;
inline constexpr int kWideOutputs = kWideConsumers * kTileOutputs;
inline constexpr int kWideColumns = 64;                    // of a stage
inline constexpr int kWideResultPitch = kWideOutputs + 8;  // elements of a row of results
inline constexpr int kWideProducerRegisters = 40, kWideConsumerRegisters = 232;

template <typename Tiles, int kRows>
struct WideRing {
  static constexpr bool kIsFp8 = std::is_same_v<Tiles, Fp8Tiles>;
  static constexpr bool kIsFp4 = std::is_same_v<Tiles, Fp4Tiles>;
  static constexpr int kRowBytes = kRows * kWideColumns * 2;
  static constexpr int kTileBytes = kWideColumns / Tiles::kColumns * 4 * kUnitBytes;  // of one tile
  static constexpr int kScaleBytes = kIsFp4 ? 128 : 0;                                // of one tile
  static constexpr int kScalesAt = kRowBytes + kWideConsumers * kTileBytes;
  static constexpr int kStageBytes = (kScalesAt + kWideConsumers * kScaleBytes + 1023) / 1024 * 1024;
  static constexpr int kStages = 200 * 1024 / kStageBytes < 8 ? 200 * 1024 / kStageBytes : 8;
  static constexpr int kBytes = kStages * kStageBytes;
  static constexpr int kSharedBytes = kBytes + 1024 + kStages * 16;
  static_assert(kRows * kWideResultPitch * 2 <= kBytes);

  uint32_t ring, full, empty;  // shared addresses

  // All threads; they may be used after a __syncthreads.
  __device__ explicit WideRing(const void* shared) {
    ring = (cuda::SharedAddress(shared) + 1023) / 1024 * 1024;
    full = ring + kBytes;
    empty = full + kStages * 8;
    if (threadIdx.x == 0) {
      for (uint32_t i = 0; i < kStages; ++i) {
        cuda::InitBarrier(full + i * 8, 128 + 1);
        cuda::InitBarrier(empty + i * 8, kWideConsumers * 128);
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
  }
};

// The two tiles of a block, the second of which may not be there.
struct WideWeights {
  const uint8_t* tiles;   // of the first
  const uint8_t* scales;  // of the first
  int64_t in;
  int chunk_columns;
  int num_tiles;
};

inline constexpr uint32_t kNoRow = UINT32_MAX;

// The producer. row_of(r): where row r of the block begins, in 16 bytes from `x`, or kNoRow, which is zeros.
template <typename Tiles, int kRows, typename RowOf>
__device__ void WideProduce(const WideRing<Tiles, kRows>& r, const WideWeights& w, const __nv_bfloat16* x,
                            const RowOf& row_of) {
  using R = WideRing<Tiles, kRows>;
  constexpr int kEach = kRows / 16;  // a thread brings one 16-byte column of every sixteenth row
  const int thread = static_cast<int>(threadIdx.x), row = thread / 8, column = thread % 8;
  const uint32_t to = static_cast<uint32_t>(row * 128 + (column ^ row % 8) * 16);
  uint32_t from[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) from[i] = row_of(row + i * 16);
  const uint8_t* at_column = reinterpret_cast<const uint8_t*>(x) + column * 16;
  const uint8_t *tiles = w.tiles, *scales = w.scales;
  const int64_t tile_bytes = w.in / kWideColumns * R::kTileBytes, scale_bytes = w.in / kWideColumns * R::kScaleBytes;
  const int stages = static_cast<int>(w.in / kWideColumns);
  uint32_t slot = 0, parity = 1;
  for (int k = 0; k < stages; ++k) {
    const uint32_t at = r.ring + slot * R::kStageBytes, ready = r.full + slot * 8;
    cuda::WaitBarrier(r.empty + slot * 8, parity);
    if (thread == 0) {
      cuda::ArriveExpecting(ready, static_cast<uint32_t>(w.num_tiles * (R::kTileBytes + R::kScaleBytes)));
      for (int t = 0; t < w.num_tiles; ++t) {
        cuda::BulkCopy(at + R::kRowBytes + static_cast<uint32_t>(t * R::kTileBytes), tiles + t * tile_bytes,
                       R::kTileBytes, ready);
        if constexpr (R::kIsFp4) {
          cuda::BulkCopy(at + R::kScalesAt + static_cast<uint32_t>(t * R::kScaleBytes), scales + t * scale_bytes,
                         R::kScaleBytes, ready);
        }
      }
      tiles += R::kTileBytes;
      scales += R::kScaleBytes;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const bool live = from[i] != kNoRow;
      cuda::CopyAsync16(at + to + static_cast<uint32_t>(i * 16 * 128), at_column + (live ? int64_t{from[i]} * 16 : 0),
                        live);
    }
    at_column += kWideColumns * 2;
    cuda::ArriveAfterCopies(ready);
    if (++slot == R::kStages) slot = 0, parity ^= 1;
  }
}

// A consumer, 0 or 1. total: element 4 j + 2 h + i is output warp * 16 + g + 8 h of its tile, row 8 j + 2 t + i.
template <typename Tiles, int kRows>
__device__ void WideConsume(const WideRing<Tiles, kRows>& r, const WideWeights& w, int consumer,
                            float (&total)[kRows / 2]) {
  using R = WideRing<Tiles, kRows>;
  const int thread = static_cast<int>(threadIdx.x) % 128, warp = thread / 32, lane = thread % 32;
  const int stages = static_cast<int>(w.in / kWideColumns), chunk_stages = w.chunk_columns / kWideColumns;
  const int64_t blocks = w.in / 32;
  float sums[kRows / 2];
  uint32_t a[2][2][4];  // [half of a stage][step]
  uint32_t chunk_scale = 0;
  int chunk_begin = 0, previous = -1;
#pragma unroll
  for (float& v : total) v = 0;
  for (int k = 0; k < stages; ++k) {
    if (k == chunk_begin + chunk_stages) {
      WgmmaWait<0>();
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) total[i] = __fadd_rn(total[i], sums[i]);
      chunk_begin = k;
    }
    if (R::kIsFp8 && k == chunk_begin) {
      const int64_t block = int64_t{k} * 2 + lane;
      chunk_scale = consumer < w.num_tiles && block < blocks ? w.scales[(consumer * 2 + warp / 2) * blocks + block] : 0;
    }
    const uint32_t slot = static_cast<uint32_t>(k % R::kStages);
    const uint32_t at = r.ring + slot * R::kStageBytes;
    cuda::WaitBarrier(r.full + slot * 8, static_cast<uint32_t>(k / R::kStages) & 1);
    cuda::FenceAsyncProxy();  // the rows came by ordinary copies
    const uint32_t units =
        at + static_cast<uint32_t>(R::kRowBytes + consumer * R::kTileBytes + warp * kUnitBytes + lane * 16);
    uint32_t fp4_scales = 0;
    if constexpr (R::kIsFp4) {
      asm volatile(
          "ld.shared.u32 %0, [%1];"
          : "=r"(fp4_scales)
          : "r"(at + static_cast<uint32_t>(R::kScalesAt + consumer * R::kScaleBytes + warp * 32 + lane / 4 * 4)));
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t fp8_scale = 0;
      if constexpr (R::kIsFp8) fp8_scale = __shfl_sync(0xFFFFFFFFu, chunk_scale, (k - chunk_begin) * 2 + half);
      WgmmaWait<1>();  // the group that read this half's registers
      if (half == 1 && previous >= 0) cuda::Arrive(r.empty + static_cast<uint32_t>(previous) * 8);
      ExpandShared<Tiles>(units, fp4_scales, fp8_scale, half, a[half]);
      WgmmaFence();
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        Wgmma<kRows>::Run(sums, a[half][step], SwizzledRows(at + static_cast<uint32_t>((half * 2 + step) * 32)),
                          k != chunk_begin || half + step > 0);
      }
      WgmmaCommit();
    }
    previous = static_cast<int>(slot);
  }
  WgmmaWait<0>();
  WgmmaFenceRegisters(sums);
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) total[i] = __fadd_rn(total[i], sums[i]);
}

__device__ inline void WideConsumersSync() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

// Where the ring was: results [row][output] of both consumers, rounded. All stages have been read by then.
template <typename Tiles, int kRows>
__device__ __nv_bfloat16* WideResults(const WideRing<Tiles, kRows>& r, uint8_t* shared, int consumer,
                                      const float (&total)[kRows / 2]) {
  const int thread = static_cast<int>(threadIdx.x) % 128, warp = thread / 32, lane = thread % 32;
  auto* results = reinterpret_cast<__nv_bfloat16*>(shared + (r.ring - cuda::SharedAddress(shared)));
  __nv_bfloat16* at = results + lane % 4 * 2 * kWideResultPitch + consumer * kTileOutputs + warp * 16 + lane / 4;
  WideConsumersSync();
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) {
    at[(i / 4 * 8 + i % 2) * kWideResultPitch + i / 2 % 2 * 8] = __float2bfloat16_rn(total[i]);
  }
  WideConsumersSync();
  return results;
}

}  // namespace senko::ops::sm90
