// Which keys a call scores and which block of threads scores them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/select/select_sm90.h"

namespace senko::ops {

inline constexpr int kSelectThreads = 256, kSelectWarps = kSelectThreads / 32;
inline constexpr int kMostUnitTiles = static_cast<int>(kMaxSelectRowsSm90) / kSelectThreads;

// What a row needs. Keys of a restricted row are counted along its candidate blocks: slot s is entry s % size of the
// (s / size)-th.
struct RowWork {
  int64_t visible;   // entries
  int eligible;      // slots the selection may take
  int slots;         // to score: all eligible ones, or none when none is left out
  bool rank_blocks;  // more candidate blocks than may be published
};

__device__ inline RowWork WorkOf(const SelectSm90Params& p, int64_t row) {
  RowWork w;
  w.visible = static_cast<uint32_t>(p.rows.positions[row] + 1) / static_cast<uint32_t>(p.ratio);
  w.rank_blocks = false;
  const int visible = static_cast<int>(w.visible), size = static_cast<int>(p.candidate_block_size);
  if (p.candidates != nullptr) {
    const int count = p.candidate_count[row];
    w.eligible = 0;
    if (count > 0) {
      const int newest = p.candidates[row * p.candidate_stride + count - 1];
      w.eligible = (count - 1) * size + min(max(visible - newest * size, 0), size);
    }
  } else {
    w.eligible = visible;
    if (p.candidates_out != nullptr) w.rank_blocks = (visible + size - 1) / size > p.candidate_blocks;
  }
  w.slots = w.eligible > p.topk || w.rank_blocks ? w.eligible : 0;
  return w;
}

__device__ inline int RoundUpTo(int v, int step) { return (v + step - 1) / step * step; }

// Slots of rows [unit * kRows, ...) to score, in whole steps: rows of one sequence that follow each other share theirs.
template <int kRows, int kStep>
__device__ inline int64_t UnitKeys(const SelectSm90Params& p, int rows, int64_t unit) {
  if constexpr (kRows == 1) return RoundUpTo(WorkOf(p, unit).slots, kStep);
  int64_t keys = 0;
  int most = 0, sequence = -1;
  const int64_t end = min(int64_t{rows}, (unit + 1) * kRows);
  for (int64_t row = unit * kRows; row < end; ++row) {
    if (p.rows.sequences[row] != sequence) {
      keys += RoundUpTo(most, kStep);
      most = 0;
      sequence = p.rows.sequences[row];
    }
    most = max(most, WorkOf(p, row).slots);
  }
  return keys + RoundUpTo(most, kStep);
}

// All units' keys end to end; block b of the grid takes [b * range, (b + 1) * range).
struct Plan {
  int64_t total, range;
  int64_t unit, unit_begin;  // where this block's range begins: inside `unit`, whose first key is `unit_begin`
};

struct PlanShared {
  unsigned long long tiles[kMostUnitTiles];  // sums over kSelectThreads units
  int64_t warps[kSelectWarps];
  int64_t unit, unit_begin;
};

// All threads of the block.
template <int kRows, int kStep>
__device__ Plan MakePlan(const SelectSm90Params& p, int rows, PlanShared* shared) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int units = (rows + kRows - 1) / kRows, tiles = (units + kSelectThreads - 1) / kSelectThreads;
  for (int t = thread; t < tiles; t += kSelectThreads) shared->tiles[t] = 0;
  __syncthreads();
  for (int t = 0; t < tiles; ++t) {
    const int unit = t * kSelectThreads + thread;
    int64_t keys = unit < units ? UnitKeys<kRows, kStep>(p, rows, unit) : 0;
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) keys += __shfl_xor_sync(0xFFFFFFFFu, keys, lanes);
    if (lane == 0 && keys > 0) atomicAdd(&shared->tiles[t], static_cast<unsigned long long>(keys));
  }
  __syncthreads();
  Plan plan{0, 0, units, 0};
  for (int t = 0; t < tiles; ++t) plan.total += static_cast<int64_t>(shared->tiles[t]);
  plan.unit_begin = plan.total;  // a block past the end has nothing
  plan.range = (plan.total + gridDim.x - 1) / gridDim.x;
  plan.range = (plan.range + kStep - 1) / kStep * kStep;
  const int64_t begin = blockIdx.x * plan.range;
  if (begin >= plan.total) return plan;
  int tile = 0;
  int64_t before = 0;
  while (before + static_cast<int64_t>(shared->tiles[tile]) <= begin)
    before += static_cast<int64_t>(shared->tiles[tile++]);
  const int unit = tile * kSelectThreads + thread;
  const int64_t keys = unit < units ? UnitKeys<kRows, kStep>(p, rows, unit) : 0;
  int64_t through = keys;
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const int64_t other = __shfl_up_sync(0xFFFFFFFFu, through, lanes);
    if (lane >= lanes) through += other;
  }
  if (lane == 31) shared->warps[warp] = through;
  __syncthreads();
  for (int w = 0; w < warp; ++w) before += shared->warps[w];
  const int64_t mine = before + through - keys;
  if (mine <= begin && begin < mine + keys) {
    shared->unit = unit;
    shared->unit_begin = mine;
  }
  __syncthreads();
  plan.unit = shared->unit;
  plan.unit_begin = shared->unit_begin;
  return plan;
}

// ---- pieces of units that cross ranges ----

// A unit's pieces are blocks [first, last] of the grid; unit -1: none.
struct Crossing {
  int unit, first, last, unused;
};

inline constexpr int kPieceGroup = 16;  // pieces merged at once

// What scratch holds. Of the two pieces that a block of the grid may have, slot 2 b is of a unit that began before its
// range and 2 b + 1 of one that begins in it and ends later.
struct PieceStore {
  Crossing* head;     // [grid] of slot 2 b
  Crossing* tail;     // [grid] of slot 2 b + 1
  int* arrived;       // [grid][rows of a unit] groups of a unit's pieces that are merged; by its first block
  int* entry_count;   // [2 grid][rows of a unit]
  int* block_count;   //
  uint64_t* entries;  // [2 grid][rows of a unit][topk] ranks, ascending indices
  uint64_t* blocks;   // [2 grid][rows of a unit][candidate_blocks]
};

__device__ inline int SlotOf(int block, int first) { return 2 * block + (block == first ? 1 : 0); }

}  // namespace senko::ops
