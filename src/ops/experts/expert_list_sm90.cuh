// Items of one kind of experts in one of the two products, as kernels see them, and how results leave a block.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "numerics/fp8_lanes.cuh"
#include "ops/experts/experts_sm90.h"
#include "ops/linear/wide_sm90.cuh"

namespace senko::ops::sm90 {

struct ExpertList {
  // Null: all rows of the shared expert in items of `block`; pair and row are then the same.
  const ExpertItem* items = nullptr;
  const int32_t* count = nullptr;  // device: of items, or of rows
  const int32_t* pairs = nullptr;
  int64_t block = 0, max_items = 0, topk = 1;

  const uint8_t* tiles = nullptr;
  const uint8_t* scales = nullptr;
  int64_t in = 0, out = 0;  // of the product
  int64_t num_tiles = 0;    // of an expert
  int64_t tile_bytes = 0, tile_scale_bytes = 0;
  int chunk_columns = 0;

  const __nv_bfloat16* x = nullptr;  // up: rows; down: h, pair by pair
  // Up.
  const float* route_weights = nullptr;
  float limit = 0;
  bool round = false;
  __nv_bfloat16* h = nullptr;  // [pairs, inter]
  int64_t inter = 0;
  // Down.
  __nv_bfloat16* y = nullptr;
  int64_t y_row_slots = 0;
};

__device__ inline bool FindItem(const ExpertList& l, int64_t i, ExpertItem* item) {
  const int32_t count = *l.count;
  if (l.items != nullptr) {
    if (i >= count) return false;
    *item = l.items[i];
    return true;
  }
  const int64_t first = i * l.block;
  if (first >= count) return false;
  *item = {0, static_cast<int32_t>(first), static_cast<int32_t>(min(l.block, count - first))};
  return true;
}

__device__ inline int64_t PairAt(const ExpertList& l, int64_t at) { return l.pairs != nullptr ? l.pairs[at] : at; }

// Where the row of an item begins, in 16 bytes from l.x: rows of x by the pair's row; rows of h in the order of pairs.
template <bool kUp>
__device__ uint32_t RowOf(const ExpertList& l, const ExpertItem& item, int row) {
  const int64_t at = item.first + row;
  return static_cast<uint32_t>((kUp ? PairAt(l, at) / l.topk : at) * (l.in / 8));
}

__device__ inline float UpTo(float x, float limit) { return x > limit ? limit : x; }
__device__ inline float DownTo(float x, float limit) { return x < limit ? limit : x; }

// results: [row][gate, up] of 64 columns. Every warp of the kThreads threads comes with all its lanes.
template <int kRows, int kThreads>
__device__ void StoreSwiglu(const ExpertList& l, const ExpertItem& item, int64_t first_column,
                            const __nv_bfloat16* results, int thread) {
  for (int i = thread; i < kRows * 8; i += kThreads) {
    const int row = i / 8, piece = i % 8;
    const bool live = row < item.count;
    float weight = 1.0f;
    if (live && l.route_weights != nullptr) weight = l.route_weights[PairAt(l, item.first + row)];
    float h[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const __nv_bfloat16* at = results + row * kWideResultPitch + piece * 8 + k;
      float gate = __bfloat162float(at[0]), up = __bfloat162float(at[kTileOutputs]);
      if (l.limit > 0) {
        gate = UpTo(gate, l.limit);
        up = DownTo(UpTo(up, l.limit), -l.limit);
      }
      const float silu = __fdiv_rn(gate, __fadd_rn(1.0f, expf(-gate)));
      h[k] = __bfloat162float(__float2bfloat16_rn(__fmul_rn(__fmul_rn(silu, up), weight)));
    }
    if (l.round) numerics::RoundFp8OverLanes(h);
    if (!live) continue;
    uint4 codes;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const __nv_bfloat162 two = __floats2bfloat162_rn(h[2 * k], h[2 * k + 1]);
      (&codes.x)[k] = *reinterpret_cast<const uint32_t*>(&two);
    }
    *reinterpret_cast<uint4*>(l.h + (item.first + row) * l.inter + first_column + piece * 8) = codes;
  }
}

// results: [row][output] of 128 outputs.
template <int kRows, int kThreads>
__device__ void StoreDown(const ExpertList& l, const ExpertItem& item, int64_t first_column,
                          const __nv_bfloat16* results, int thread) {
  const int pieces = static_cast<int>(min(int64_t{kWideOutputs}, l.out - first_column)) / 8;
  for (int i = thread; i < kRows * (kWideOutputs / 8); i += kThreads) {
    const int row = i / (kWideOutputs / 8), piece = i % (kWideOutputs / 8);
    if (row >= item.count || piece >= pieces) continue;
    const int64_t pair = PairAt(l, item.first + row);
    __nv_bfloat16* to = l.y + (pair / l.topk * l.y_row_slots + pair % l.topk) * l.out + first_column + piece * 8;
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(results + row * kWideResultPitch + piece * 8);
  }
}

template <int kRows, bool kUp, int kThreads>
__device__ void StoreResults(const ExpertList& l, const ExpertItem& item, int64_t pair_of_tiles,
                             const __nv_bfloat16* results, int thread) {
  if constexpr (kUp) {
    StoreSwiglu<kRows, kThreads>(l, item, pair_of_tiles * kTileOutputs, results, thread);
  } else {
    StoreDown<kRows, kThreads>(l, item, pair_of_tiles * kWideOutputs, results, thread);
  }
}

// Both products of few rows (experts_stream_sm90.cu): items of 8, 16 or 32 pairs, and the shared expert's rows, at most
// kStreamSharedRows, beside them in the same launch (inter 0: none).
inline constexpr int64_t kStreamRows = 32, kStreamSharedRows = 64;
struct StreamLists {
  WeightFormat format;  // of `routed`; `shared` is kFp8
  ExpertList routed, shared;
  int64_t max_shared_rows = 0;  // 0: none
  uint8_t* scratch = nullptr;
};
template <bool kUp>
void LaunchStream(const StreamLists& lists, cudaStream_t stream);

// One list's product of many rows (experts_wide_sm90.cu), items of at most 128 pairs.
template <bool kUp>
void LaunchMany(WeightFormat format, const ExpertList& l, cudaStream_t stream);

int Multiprocessors();  // of this thread's GPU

}  // namespace senko::ops::sm90
