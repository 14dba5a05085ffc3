// A selection's second launch: rows whose keys several blocks scored, each of which kept a piece.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/ptx.cuh"
#include "ops/select/select_keep_sm90.cuh"
#include "ops/select/select_walk_sm90.cuh"

namespace senko::ops {

inline constexpr int kMergeThreads = 512, kMergeEach = 18;
inline constexpr int kMostPieces = 64;  // merged at once: a group, or the groups of a unit

struct MergeShared {
  KeepShared<kMergeThreads> keep;
  uint64_t kept[kMaxCandidateBlocksSm90];
  int begins[kMostPieces + 1];
  bool last;
};

// The `most` best of pieces first, first + step, ... up to `last`, in order, to shared->kept. Returns how many.
__device__ inline int MergePieces(const uint64_t* ranks, const int* counts, int64_t stride, int rows_each,
                                  int row_in_unit, int unit_first, int first, int last, int step, int most,
                                  MergeShared* shared) {
  const int pieces = (last - first) / step + 1;
  const auto place = [&](int piece) {
    return int64_t{SlotOf(first + piece * step, unit_first)} * rows_each + row_in_unit;
  };
  __syncthreads();
  if (threadIdx.x < static_cast<unsigned>(pieces))
    shared->begins[threadIdx.x + 1] = __ldcg(counts + place(threadIdx.x));
  __syncthreads();
  if (threadIdx.x == 0) {
    shared->begins[0] = 0;
    for (int i = 0; i < pieces; ++i) shared->begins[i + 1] += shared->begins[i];
  }
  __syncthreads();
  const int all = shared->begins[pieces];
  int kept = 0;
  for (int done = 0; done < all;) {
    const int more = min(all - done, kMergeThreads * kMergeEach - kept);
    int piece = 0;
    const auto load = [&](int i) -> uint64_t {
      if (i < kept) return shared->kept[i];
      const int at = done + i - kept;
      while (at >= shared->begins[piece + 1]) ++piece;
      return __ldcg(ranks + place(piece) * stride + at - shared->begins[piece]);
    };
    uint64_t bound;
    const int n = kept + more;
    kept = KeepBest<kMergeThreads, kMergeEach>(n, most, load, shared->kept, &bound, &shared->keep);
    done += more;
  }
  return kept;
}

// Block l merges the group of pieces that begins with its own, if one does; the last group of a row to be merged is
// where the row is finished.
template <int kRows>
__global__ __launch_bounds__(kMergeThreads, 1) void MergeKernel(const SelectSm90Params p, const PieceStore pieces) {
  extern __shared__ __align__(128) uint8_t memory[];
  auto* const shared = reinterpret_cast<MergeShared*>(memory);
  const int block = static_cast<int>(blockIdx.x), in_unit = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x), topk = static_cast<int>(p.topk);
  cuda::WaitForPrevious();
  cuda::LetNextBegin();
  for (int which = 0; which < 2; ++which) {
    const Crossing unit = which == 0 ? pieces.head[block] : pieces.tail[block];
    if (unit.unit < 0 || (block - unit.first) % kPieceGroup != 0) continue;
    const int64_t row = int64_t{unit.unit} * kRows + in_unit;
    if (row >= *p.num_rows) continue;
    const RowWork work = WorkOf(p, row);
    if (work.slots == 0) continue;
    const int groups = (unit.last - unit.first) / kPieceGroup + 1;
    const int most_blocks = static_cast<int>(p.candidate_blocks) - 1;
    for (int level = groups > 1 ? 0 : 1; level < 2; ++level) {
      const bool ends = level == 1;
      const int first = ends ? unit.first : block;
      const int last = ends ? unit.last : min(block + kPieceGroup - 1, unit.last);
      const int step = ends && groups > 1 ? kPieceGroup : 1;
      const int64_t own = int64_t{SlotOf(block, unit.first)} * kRows + in_unit;
      int count = MergePieces(pieces.entries, pieces.entry_count, topk, kRows, in_unit, unit.first, first, last, step,
                              topk, shared);
      if (ends) {
        WriteSelected(p, row, shared->kept, count, thread, kMergeThreads);
      } else {
        for (int i = thread; i < count; i += kMergeThreads) pieces.entries[own * topk + i] = shared->kept[i];
        if (thread == 0) pieces.entry_count[own] = count;
      }
      if (work.rank_blocks) {
        count = most_blocks == 0 ? 0
                                 : MergePieces(pieces.blocks, pieces.block_count, p.candidate_blocks, kRows, in_unit,
                                               unit.first, first, last, step, most_blocks, shared);
        if (ends) {
          WriteCandidates(p, row, work.visible, shared->kept, count, thread, kMergeThreads);
        } else {
          for (int i = thread; i < count; i += kMergeThreads)
            pieces.blocks[own * p.candidate_blocks + i] = shared->kept[i];
          if (thread == 0) pieces.block_count[own] = count;
        }
      }
      if (ends) break;
      __threadfence();
      __syncthreads();
      if (thread == 0) {
        shared->last = atomicAdd(&pieces.arrived[unit.first * kRows + in_unit], 1) == groups - 1;
        __threadfence();
      }
      __syncthreads();
      if (!shared->last) break;
    }
    __syncthreads();
  }
}

}  // namespace senko::ops
