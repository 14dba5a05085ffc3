// What scanning kernels of a selection have in common: a block's walk through its range of keys, and what is written of
// a row whose lists are complete.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/select/select_plan_sm90.cuh"
#include "ops/select/select_sm90.h"

namespace senko::ops {

inline constexpr size_t kMostSharedBytes = 227 * 1024;

__device__ inline uint64_t RankOf(uint32_t key, int index) {
  return uint64_t{key} << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(index));
}
__device__ inline int IndexOf(uint64_t rank) { return static_cast<int>(0xFFFFFFFFu - static_cast<uint32_t>(rank)); }

// The largest of each `size` lanes that follow each other; size is a power of two up to 32.
__device__ inline uint32_t LargestOf(uint32_t key, int size) {
  for (int lanes = 1; lanes < size; lanes *= 2) key = max(key, __shfl_xor_sync(0xFFFFFFFFu, key, lanes));
  return key;
}

// What takes no scores: rows that select all they see, and candidate blocks where all may be published. A warp a row.
__device__ inline void WriteWholeRows(const SelectSm90Params& p, int rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32, size = static_cast<int>(p.candidate_block_size);
  for (int64_t row = blockIdx.x + int64_t{threadIdx.x / 32} * gridDim.x; row < rows; row += gridDim.x * kSelectWarps) {
    const RowWork work = WorkOf(p, row);
    if (work.slots == 0) {
      int32_t* const out = p.selected + row * p.selected_stride;
      for (int s = lane; s < work.eligible; s += 32) {
        out[s] = p.candidates == nullptr ? s : p.candidates[row * p.candidate_stride + s / size] * size + s % size;
      }
      if (lane == 0) p.selected_count[row] = work.eligible;
    }
    if (p.candidates_out != nullptr && !work.rank_blocks) {
      const int blocks = (static_cast<int>(work.visible) + size - 1) / size;
      for (int b = lane; b < blocks; b += 32) p.candidates_out[row * p.candidate_stride + b] = b;
      if (lane == 0) p.candidate_count_out[row] = blocks;
    }
  }
}

// A row's selection, or its candidates with the newest block behind them. `threads` threads of which this is `thread`.
__device__ inline void WriteSelected(const SelectSm90Params& p, int64_t row, const uint64_t* ranks, int count,
                                     int thread, int threads) {
  for (int i = thread; i < count; i += threads) p.selected[row * p.selected_stride + i] = IndexOf(ranks[i]);
  if (thread == 0) p.selected_count[row] = count;
}
__device__ inline void WriteCandidates(const SelectSm90Params& p, int64_t row, int64_t visible, const uint64_t* ranks,
                                       int count, int thread, int threads) {
  int32_t* const out = p.candidates_out + row * p.candidate_stride;
  for (int i = thread; i < count; i += threads) out[i] = IndexOf(ranks[i]);
  if (thread != 0) return;
  out[count] = static_cast<int32_t>((visible - 1) / p.candidate_block_size);
  p.candidate_count_out[row] = count + 1;
}

// Where a call's keys are found and what became of its pieces: made by the host.
struct SelectSetup {
  int page_shift, block_shift;
  PieceStore pieces;
};

// What a block of the grid does with one unit: slots [begin, end) of its keys.
struct SelectSegment {
  int64_t unit, begin, end;
  bool whole;
  int slot;  // of PieceStore, unless whole
};

// Walks this block's range. scan(segment) is called by all threads.
template <int kRows, int kStep, typename Scan>
__device__ void WalkRange(const SelectSm90Params& p, const PieceStore& pieces, PlanShared* shared, Scan scan) {
  const int rows = *p.num_rows, block = static_cast<int>(blockIdx.x);
  WriteWholeRows(p, rows);
  const Plan plan = MakePlan<kRows, kStep>(p, rows, shared);
  const int64_t begin = block * plan.range, end = min(begin + plan.range, plan.total);
  Crossing head{-1, 0, 0, 0}, tail{-1, 0, 0, 0};
  int64_t first = plan.unit_begin;  // key of the unit
  for (int64_t unit = plan.unit; first < end; ++unit) {
    const int64_t keys = UnitKeys<kRows, kStep>(p, rows, unit);
    if (keys == 0) continue;
    const int first_block = static_cast<int>(first / plan.range);
    const int last_block = static_cast<int>((first + keys - 1) / plan.range);
    const SelectSegment segment{unit, max(begin, first) - first, min(end, first + keys) - first,
                                first_block == last_block, SlotOf(block, first_block)};
    if (!segment.whole) {
      (first_block == block ? tail : head) = {static_cast<int>(unit), first_block, last_block, 0};
    }
    scan(segment);
    first += keys;
  }
  if (threadIdx.x == 0) {
    pieces.head[block] = head;
    pieces.tail[block] = tail;
  }
  if (threadIdx.x < kRows) pieces.arrived[block * kRows + threadIdx.x] = 0;
}

}  // namespace senko::ops
