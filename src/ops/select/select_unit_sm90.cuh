// A selection's scan by units of four or eight rows: every warp scores its keys for all rows, then keeps one row's
// list.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/ptx.cuh"
#include "ops/select/order_key.h"
#include "ops/select/select_keep_sm90.cuh"
#include "ops/select/select_score_sm90.cuh"
#include "ops/select/select_walk_sm90.cuh"

namespace senko::ops {

inline constexpr int kUnitKeys = 16 * kQuadTiles, kUnitStep = kUnitKeys * kSelectWarps;  // a warp's keys, a step's
inline constexpr int kScoreStride = kUnitStep + 8;             // floats: four rows fall into different banks
inline constexpr int kUnitEntries = 1408, kUnitBlocks = 2560;  // ranks of a list

template <int kRows>
struct UnitShared {
  KeyStage<kUnitKeys> stages[kSelectWarps];
  KeyInfo<kUnitKeys> infos[kSelectWarps];
  alignas(16) uint4 tables[kMaxKeyFold + 1];
  QuadOperand operands[kRows / 4];
  Queries<kRows> queries;
  float scores[2][kRows][kScoreStride];
  int histograms[kSelectWarps][256];
  PlanShared plan;
  int slots[kRows];  // of the run's rows; 0: not of the run, or nothing to score
  uint64_t entries[kRows][kUnitEntries];
  uint64_t maxima[kRows == 4 ? 4 : 1][kRows == 4 ? kUnitBlocks : 1];  // four rows may publish
};
static_assert(sizeof(UnitShared<4>) <= kMostSharedBytes && sizeof(UnitShared<8>) <= kMostSharedBytes);

// A list that one warp keeps.
struct WarpList {
  uint64_t* ranks;
  int count;
  uint64_t bound;

  __device__ void Append(uint64_t rank, bool offers) {
    const uint32_t lanes = __ballot_sync(0xFFFFFFFFu, offers);
    if (offers) ranks[count + __popc(lanes & ((1u << threadIdx.x % 32) - 1))] = rank;
    count += __popc(lanes);
  }
  __device__ void Cut(int most, int* histogram) {
    if (count > most) count = KeepBestOfWarp(ranks, count, most, &bound, histogram);
    __syncwarp();
  }
};

// Rows of the unit from `from` that are of one sequence, and the most slots that one of them scores.
struct Run {
  int from, to, slots;
};
template <int kRows>
__device__ Run NextRun(const SelectSm90Params& p, int64_t first_row, int rows, int from) {
  Run run{from, from + 1, WorkOf(p, first_row + from).slots};
  while (run.to < rows && p.rows.sequences[first_row + run.to] == p.rows.sequences[first_row + from]) {
    run.slots = max(run.slots, WorkOf(p, first_row + run.to).slots);
    ++run.to;
  }
  return run;
}

template <int kRows>
__device__ void ScanUnit(const SelectSm90Params& p, const SelectSetup& setup, const SelectSegment& segment,
                         UnitShared<kRows>* shared) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int64_t first_row = segment.unit * kRows;
  const int rows = static_cast<int>(min(int64_t{kRows}, *p.num_rows - first_row));
  const int blocks = static_cast<int>(p.dim / 32), size = static_cast<int>(p.candidate_block_size);
  const int topk = static_cast<int>(p.topk), most_blocks = static_cast<int>(p.candidate_blocks) - 1;
  bool folds = blocks == 4;  // small models' keys do not fold
  for (int task = thread; task < kHeads * kRows; task += kSelectThreads) {
    const int64_t row = first_row + task / kHeads;
    const int head = task % kHeads;
    if (task / kHeads >= rows || head >= p.heads) continue;
    folds = folds && HeadFolds(QueryCodes(p, row, head), p.weights[row * p.heads + head]);
  }
  folds = __syncthreads_and(folds ? 1 : 0) != 0;
  for (int task = thread; task < 4 * kHeads * kRows; task += kSelectThreads) {
    const int to = task / (4 * kHeads);
    PrepareBlock<kRows>(p, first_row + to, to < rows, to, task / 4 % kHeads, folds, &shared->queries, shared->operands);
  }

  // This warp's list: the entries of row `warp`, or behind those the blocks of row `warp` - kRows.
  const bool of_blocks = warp >= kRows;
  const int list_row = of_blocks ? warp - kRows : warp;
  RowWork work{0, 0, 0, false};
  if (list_row < rows) work = WorkOf(p, first_row + list_row);
  const bool keeps = work.slots > 0 && (!of_blocks || (work.rank_blocks && most_blocks > 0));
  const int newest = work.rank_blocks ? (static_cast<int>(work.visible) - 1) / size : 0;
  WarpList list{of_blocks ? shared->maxima[kRows == 4 ? list_row : 0] : shared->entries[list_row], 0, 0};
  const int most = of_blocks ? most_blocks : topk;
  int* const histogram = shared->histograms[warp];

  KeySource source{nullptr, nullptr, 0, setup.page_shift, 0};
  int64_t before = 0;  // slots of the runs so far, in whole steps
  for (int from = 0; from < rows && before < segment.end;) {
    const Run run = NextRun<kRows>(p, first_row, rows, from);
    const int whole = RoundUpTo(run.slots, kUnitStep);
    const int begin = static_cast<int>(max(segment.begin - before, int64_t{0}));
    const int end = static_cast<int>(min(segment.end - before, int64_t{whole}));
    before += whole;
    from = run.to;
    if (begin >= end) continue;
    __syncthreads();
    if (thread < kRows) {
      shared->slots[thread] = thread >= run.from && thread < run.to ? WorkOf(p, first_row + thread).slots : 0;
    }
    __syncthreads();
    source.pages = p.rows.sequence_kv[p.rows.sequences[first_row + run.from]].pages;
    source.slots = run.slots;
    const auto place = [&](int slot, KeyPlace(&places)[kUnitKeys / 32]) {
#pragma unroll
      for (int h = 0; h < kUnitKeys / 32; ++h) {
        places[h] = slot < end ? PlaceOf(source, slot + h * 32 + lane) : KeyPlace{-1, 0};
      }
    };
    KeyStage<kUnitKeys>& keys = shared->stages[warp];
    KeyInfo<kUnitKeys>& info = shared->infos[warp];
    KeyPlace places[kUnitKeys / 32];
    place(begin + kUnitKeys * warp, places);
    CopyKeys<kUnitKeys>(p.entries, blocks, places, &keys);
    place(begin + kUnitStep + kUnitKeys * warp, places);
    int turn = 0;
    for (int step = begin; step < end; step += kUnitStep) {
      const int slot = step + kUnitKeys * warp;
      cuda::WaitForCopies<0>();
      __syncwarp();
      const bool folded = InspectKeys<kUnitKeys>(keys, slot, run.slots, folds, &info);
      uint32_t a[kQuadTiles][4][4];
#pragma unroll
      for (int t = 0; t < kQuadTiles; ++t) {
        if (folded) {
          ExpandTile<true>(keys, info, shared->tables, t, a[t]);
        } else {
          ExpandTile<false>(keys, info, shared->tables, t, a[t]);
        }
      }
      __syncwarp();
      CopyKeys<kUnitKeys>(p.entries, blocks, places, &keys);
      place(slot + 2 * kUnitStep, places);
      if (slot < run.slots) {
#pragma unroll 1
        for (int quad = 0; quad < kRows / 4; ++quad) {
          float scores[2 * kQuadTiles];
          if (folded) {
            ScoreFoldedQuad<kRows>(static_cast<int>(p.heads), a, info, shared->queries, quad, shared->operands[quad],
                                   scores);
          } else {
            ScoreAnyQuad<kRows>(p, a, info, shared->queries, quad, shared->operands[quad], scores);
          }
          float* const to = shared->scores[turn][quad * 4 + lane % 4] + kUnitKeys * warp + lane / 4;
#pragma unroll
          for (int k = 0; k < 2 * kQuadTiles; ++k) to[8 * k] = scores[k];
        }
      }
      __syncthreads();
      const int slots = shared->slots[list_row];
      if (keeps && slots > step) {
        const float* const from_scores = shared->scores[turn][list_row];
#pragma unroll 4
        for (int i = 0; i < kUnitStep / 32; ++i) {
          const int entry = step + i * 32 + lane;
          const bool exists = entry < slots;
          const float score = from_scores[i * 32 + lane];
          const uint32_t key = exists ? OrderKey(score) : 0;
          if (of_blocks) {
            const uint32_t largest = LargestOf(key, size);
            const uint64_t rank = RankOf(largest, entry / size);
            list.Append(rank, lane % size == 0 && exists && entry / size < newest && rank >= list.bound);
          } else {
            const uint64_t rank = RankOf(key, entry);
            list.Append(rank, exists && rank >= list.bound);
            if (p.scores != nullptr && exists) p.scores[(first_row + list_row) * p.scores_stride + entry] = score;
          }
        }
        if (list.count > (of_blocks ? kUnitBlocks - kUnitStep / size : kUnitEntries - kUnitStep))
          list.Cut(most, histogram);
      }
      turn ^= 1;
    }
    cuda::WaitForCopies<0>();
  }
  if (keeps) {
    list.Cut(most, histogram);
    const int64_t row = first_row + list_row;
    if (segment.whole) {
      if (of_blocks) {
        WriteCandidates(p, row, work.visible, list.ranks, list.count, lane, 32);
      } else {
        WriteSelected(p, row, list.ranks, list.count, lane, 32);
      }
    } else {
      const PieceStore& to = setup.pieces;
      const int64_t at = int64_t{segment.slot} * kRows + list_row;
      uint64_t* const ranks = of_blocks ? to.blocks + at * p.candidate_blocks : to.entries + at * topk;
      for (int i = lane; i < list.count; i += 32) ranks[i] = list.ranks[i];
      if (lane == 0) (of_blocks ? to.block_count : to.entry_count)[at] = list.count;
    }
  } else if (of_blocks && work.rank_blocks) {  // nothing but the newest is kept
    if (segment.whole) WriteCandidates(p, first_row + list_row, work.visible, list.ranks, 0, lane, 32);
    if (!segment.whole && lane == 0) setup.pieces.block_count[int64_t{segment.slot} * kRows + list_row] = 0;
  }
  __syncthreads();
}

template <int kRows>
__global__ __launch_bounds__(kSelectThreads, 1) void UnitKernel(const SelectSm90Params p, const SelectSetup setup) {
  extern __shared__ __align__(128) uint8_t memory[];
  auto* const shared = reinterpret_cast<UnitShared<kRows>*>(memory);
  if (threadIdx.x <= kMaxKeyFold) shared->tables[threadIdx.x] = KeyTable(static_cast<int>(threadIdx.x));
  cuda::WaitForPrevious();
  cuda::LetNextBegin();
  WalkRange<kRows, kUnitStep>(p, setup.pieces, &shared->plan,
                              [&](const SelectSegment& segment) { ScanUnit<kRows>(p, setup, segment, shared); });
}

}  // namespace senko::ops
