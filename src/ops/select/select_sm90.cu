// The two launches of a selection (select_sm90.h). Long decoding rows are bound by reading keys, about as fast as their
// codes can be expanded; rows by fours and eights by the int8 instructions and three float32 operations a head.
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <type_traits>

#include "base/check.h"
#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "ops/select/order_key.h"
#include "ops/select/select_keep_sm90.cuh"
#include "ops/select/select_plan_sm90.cuh"
#include "ops/select/select_score_sm90.cuh"
#include "ops/select/select_sm90.h"

namespace senko::ops {
namespace {

constexpr int64_t kManyRows = 64;  // above it rows come in units of several, unless restricted
constexpr size_t kMostSharedBytes = 227 * 1024;

__device__ uint64_t RankOf(uint32_t key, int index) {
  return uint64_t{key} << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(index));
}
__device__ int IndexOf(uint64_t rank) { return static_cast<int>(0xFFFFFFFFu - static_cast<uint32_t>(rank)); }

// The largest of each `size` lanes that follow each other; size is a power of two up to 32.
__device__ uint32_t LargestOf(uint32_t key, int size) {
  for (int lanes = 1; lanes < size; lanes *= 2) key = max(key, __shfl_xor_sync(0xFFFFFFFFu, key, lanes));
  return key;
}

// What takes no scores: rows that select all they see, and candidate blocks where all may be published. A warp a row.
__device__ void WriteWholeRows(const SelectSm90Params& p, int rows) {
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
__device__ void WriteSelected(const SelectSm90Params& p, int64_t row, const uint64_t* ranks, int count, int thread,
                              int threads) {
  for (int i = thread; i < count; i += threads) p.selected[row * p.selected_stride + i] = IndexOf(ranks[i]);
  if (thread == 0) p.selected_count[row] = count;
}
__device__ void WriteCandidates(const SelectSm90Params& p, int64_t row, int64_t visible, const uint64_t* ranks,
                                int count, int thread, int threads) {
  int32_t* const out = p.candidates_out + row * p.candidate_stride;
  for (int i = thread; i < count; i += threads) out[i] = IndexOf(ranks[i]);
  if (thread != 0) return;
  out[count] = static_cast<int32_t>((visible - 1) / p.candidate_block_size);
  p.candidate_count_out[row] = count + 1;
}

// Where a call's keys are found and what became of its pieces: made by the host.
struct Setup {
  int page_shift, block_shift;
  PieceStore pieces;
};

// What a block of the grid does with one unit: slots [begin, end) of its keys.
struct Segment {
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
    const Segment segment{unit, max(begin, first) - first, min(end, first + keys) - first, first_block == last_block,
                          SlotOf(block, first_block)};
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

// ---- units of one row ----

constexpr int kRowStages = 3, kRowStep = 32 * kSelectWarps;

// Publishing takes two long lists and has the multiprocessor to itself; else two blocks share one.
template <bool kPublishes>
struct RowShared {
  static constexpr int kEach = kPublishes ? 16 : 8, kList = kEach * kSelectThreads;  // ranks a list holds
  KeyStage<32> stages[kSelectWarps][kRowStages];
  KeyInfo<32> infos[kSelectWarps];
  alignas(16) uint4 tables[kMaxKeyFold + 1];
  Queries<1> queries;
  KeepShared<kSelectThreads> keep;
  PlanShared plan;
  int counts[2][2][kSelectWarps];  // [turn][list]
  uint64_t entries[kList];
  uint64_t maxima[kPublishes ? kList : 1];
};

// A list to which all warps append, each what one of its lanes offers.
struct BlockList {
  uint64_t* ranks;
  int count;
  uint64_t bound;
};

template <bool kPublishes>
__device__ void ScanRow(const SelectSm90Params& p, const Setup& setup, const Segment& segment,
                        RowShared<kPublishes>* shared) {
  constexpr int kEach = RowShared<kPublishes>::kEach, kList = RowShared<kPublishes>::kList;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int64_t row = segment.unit;
  const RowWork work = WorkOf(p, row);
  const int blocks = static_cast<int>(p.dim / 32), size = static_cast<int>(p.candidate_block_size);
  const int topk = static_cast<int>(p.topk), most_blocks = static_cast<int>(p.candidate_blocks) - 1;
  const bool ranks_blocks = kPublishes && work.rank_blocks && most_blocks > 0;
  const int newest = work.rank_blocks ? (static_cast<int>(work.visible) - 1) / size : 0;
  KeySource source;
  source.pages = p.rows.sequence_kv[p.rows.sequences[row]].pages;
  source.candidates = p.candidates == nullptr ? nullptr : p.candidates + row * p.candidate_stride;
  source.block_shift = setup.block_shift;
  source.page_shift = setup.page_shift;
  source.slots = work.slots;

  const int begin = static_cast<int>(segment.begin) + 32 * warp, end = static_cast<int>(segment.end);
  KeyPlace places[1];
  for (int stage = 0; stage < kRowStages; ++stage) {
    places[0] = begin + stage * kRowStep < end ? PlaceOf(source, begin + stage * kRowStep + lane) : KeyPlace{-1, 0};
    CopyKeys<32>(p.entries, blocks, places, &shared->stages[warp][stage]);
  }
  const auto next_places = [&](int slot) { return slot < end ? PlaceOf(source, slot + lane) : KeyPlace{-1, 0}; };
  places[0] = next_places(begin + kRowStages * kRowStep);

  const int my_head = thread / 4;
  bool folds = blocks == 4;  // small models' keys do not fold
  if (my_head < p.heads) folds = folds && HeadFolds(QueryCodes(p, row, my_head), p.weights[row * p.heads + my_head]);
  folds = __syncthreads_and(folds ? 1 : 0) != 0;
  if (thread < 4 * kHeads) PrepareBlock<1>(p, row, true, 0, my_head, folds, &shared->queries, nullptr);
  __syncthreads();
  const RowOperand operand = LoadRowOperand(p, row, folds);

  BlockList entries{shared->entries, 0, 0}, maxima{shared->maxima, 0, 0};
  int stage = 0, turn = 0;
  for (int base = begin; base - 32 * warp < end; base += kRowStep) {
    cuda::WaitForCopies<kRowStages - 1>();
    __syncwarp();
    KeyStage<32>& keys = shared->stages[warp][stage];
    KeyInfo<32>& info = shared->infos[warp];
    const bool folded = InspectKeys<32>(keys, base, work.slots, folds, &info);
    const float score = folded ? ScoreFoldedRow(keys, info, shared->tables, shared->queries, operand)
                               : ScoreAnyRow(p, keys, info, shared->tables, shared->queries, operand);
    __syncwarp();
    CopyKeys<32>(p.entries, blocks, places, &keys);
    places[0] = next_places(base + (kRowStages + 1) * kRowStep);
    stage = stage + 1 == kRowStages ? 0 : stage + 1;

    const int slot = base + lane;
    const bool exists = slot < work.slots;
    const uint32_t key = exists ? OrderKey(score) : 0;
    uint64_t rank = 0;
    if (exists && (key >= static_cast<uint32_t>(entries.bound >> 32) || p.scores != nullptr)) {
      const int entry = source.Entry(slot);
      rank = RankOf(key, entry);
      if (p.scores != nullptr) p.scores[row * p.scores_stride + entry] = score;
    }
    const uint32_t offered = __ballot_sync(0xFFFFFFFFu, rank != 0 && rank >= entries.bound);
    [[maybe_unused]] uint64_t block_rank = 0;
    [[maybe_unused]] uint32_t blocks_offered = 0;
    if constexpr (kPublishes) {
      const uint32_t largest = LargestOf(key, size);
      const int block = slot / size;
      block_rank = RankOf(largest, block);
      const bool offers = ranks_blocks && lane % size == 0 && exists && block < newest && block_rank >= maxima.bound;
      blocks_offered = __ballot_sync(0xFFFFFFFFu, offers);
    }
    if (lane == 0) {
      shared->counts[turn][0][warp] = __popc(offered);
      if constexpr (kPublishes) shared->counts[turn][1][warp] = __popc(blocks_offered);
    }
    __syncthreads();
    const uint32_t below = (1u << lane) - 1;
    const auto append = [&](BlockList& list, int which, uint32_t lanes, uint64_t mine, int most) {
      int at = list.count, all = 0;
      for (int w = 0; w < kSelectWarps; ++w) {
        at += w < warp ? shared->counts[turn][which][w] : 0;
        all += shared->counts[turn][which][w];
      }
      if ((lanes >> lane & 1u) != 0) list.ranks[at + __popc(lanes & below)] = mine;
      list.count += all;
      if (list.count <= kList - kRowStep) return;
      __syncthreads();
      list.count = KeepBest<kSelectThreads, kEach>(
          list.count, most, [&](int i) { return list.ranks[i]; }, list.ranks, &list.bound, &shared->keep);
    };
    append(entries, 0, offered, rank, topk);
    if constexpr (kPublishes) {
      if (ranks_blocks) append(maxima, 1, blocks_offered, block_rank, most_blocks);
    }
    turn ^= 1;
  }
  cuda::WaitForCopies<0>();
  __syncthreads();

  const auto finish = [&](BlockList& list, int most) {
    if (list.count <= most) return;
    list.count = KeepBest<kSelectThreads, kEach>(
        list.count, most, [&](int i) { return list.ranks[i]; }, list.ranks, &list.bound, &shared->keep);
  };
  const PieceStore& pieces = setup.pieces;
  finish(entries, topk);
  if (segment.whole) {
    WriteSelected(p, row, entries.ranks, entries.count, thread, kSelectThreads);
  } else {
    for (int i = thread; i < entries.count; i += kSelectThreads) {
      pieces.entries[int64_t{segment.slot} * topk + i] = entries.ranks[i];
    }
    if (thread == 0) pieces.entry_count[segment.slot] = entries.count;
  }
  if constexpr (kPublishes) {
    if (ranks_blocks) finish(maxima, most_blocks);
    if (segment.whole) {
      if (work.rank_blocks) WriteCandidates(p, row, work.visible, maxima.ranks, maxima.count, thread, kSelectThreads);
    } else {
      for (int i = thread; i < maxima.count; i += kSelectThreads) {
        pieces.blocks[segment.slot * p.candidate_blocks + i] = maxima.ranks[i];
      }
      if (thread == 0) pieces.block_count[segment.slot] = maxima.count;
    }
  }
  __syncthreads();
}

template <bool kPublishes>
__global__ __launch_bounds__(kSelectThreads, kPublishes ? 1 : 2) void RowKernel(const SelectSm90Params p,
                                                                                const Setup setup) {
  extern __shared__ __align__(128) uint8_t memory[];
  auto* const shared = reinterpret_cast<RowShared<kPublishes>*>(memory);
  if (threadIdx.x <= kMaxKeyFold) shared->tables[threadIdx.x] = KeyTable(static_cast<int>(threadIdx.x));
  cuda::WaitForPrevious();
  cuda::LetNextBegin();
  WalkRange<1, kRowStep>(p, setup.pieces, &shared->plan,
                         [&](const Segment& segment) { ScanRow<kPublishes>(p, setup, segment, shared); });
}

// ---- units of four or eight rows ----

constexpr int kUnitKeys = 16 * kQuadTiles, kUnitStep = kUnitKeys * kSelectWarps;  // a warp's keys, a step's
constexpr int kScoreStride = kUnitStep + 8;             // floats: four rows fall into different banks
constexpr int kUnitEntries = 1408, kUnitBlocks = 2560;  // ranks of a list

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
__device__ void ScanUnit(const SelectSm90Params& p, const Setup& setup, const Segment& segment,
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
__global__ __launch_bounds__(kSelectThreads, 1) void UnitKernel(const SelectSm90Params p, const Setup setup) {
  extern __shared__ __align__(128) uint8_t memory[];
  auto* const shared = reinterpret_cast<UnitShared<kRows>*>(memory);
  if (threadIdx.x <= kMaxKeyFold) shared->tables[threadIdx.x] = KeyTable(static_cast<int>(threadIdx.x));
  cuda::WaitForPrevious();
  cuda::LetNextBegin();
  WalkRange<kRows, kUnitStep>(p, setup.pieces, &shared->plan,
                              [&](const Segment& segment) { ScanUnit<kRows>(p, setup, segment, shared); });
}

// ---- pieces ----

constexpr int kMergeThreads = 512, kMergeEach = 18;
constexpr int kMostPieces = 64;  // merged at once: a group, or the groups of a unit

struct MergeShared {
  KeepShared<kMergeThreads> keep;
  uint64_t kept[kMaxCandidateBlocksSm90];
  int begins[kMostPieces + 1];
  bool last;
};

// The `most` best of pieces first, first + step, ... up to `last`, in order, to shared->kept. Returns how many.
__device__ int MergePieces(const uint64_t* ranks, const int* counts, int64_t stride, int rows_each, int row_in_unit,
                           int unit_first, int first, int last, int step, int most, MergeShared* shared) {
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

// ---- the host's part ----

int Multiprocessors() {
  int device = 0, count = 0;
  SENKO_CUDA(cudaGetDevice(&device));
  SENKO_CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

// How a call is launched: a function of what never changes from step to step.
struct Shape {
  int unit_rows;
  int grid;
};
Shape ShapeOf(int64_t max_rows, bool restricted, bool publishes, int multiprocessors) {
  if (max_rows <= kManyRows || restricted) return {1, publishes ? multiprocessors : 2 * multiprocessors};
  return {publishes ? 4 : 8, multiprocessors};
}

size_t Align(size_t bytes) { return (bytes + 255) / 256 * 256; }

// Cuts `scratch` up, or with null only measures.
size_t CutScratch(const Shape& shape, int64_t topk, int64_t candidate_blocks, uint8_t* scratch, PieceStore* store) {
  const auto grid = static_cast<size_t>(shape.grid), lists = 2 * grid * static_cast<size_t>(shape.unit_rows);
  size_t at = 0;
  const auto cut = [&](auto** to, size_t count) {
    if (scratch != nullptr) *to = reinterpret_cast<std::remove_reference_t<decltype(*to)>>(scratch + at);
    at += Align(count * sizeof(**to));
  };
  cut(&store->head, grid);
  cut(&store->tail, grid);
  cut(&store->arrived, grid * static_cast<size_t>(shape.unit_rows));
  cut(&store->entry_count, lists);
  cut(&store->block_count, lists);
  cut(&store->entries, lists * static_cast<size_t>(topk));
  cut(&store->blocks, lists * static_cast<size_t>(candidate_blocks));
  return at;
}

bool IsPowerOfTwo(int64_t v) { return v > 0 && std::has_single_bit(static_cast<uint64_t>(v)); }

template <auto kKernel>
void StartScan(const SelectSm90Params& p, const Setup& setup, int grid, size_t shared_bytes, cudaStream_t stream) {
  cuda::AllowSharedBytes<kKernel>(static_cast<int>(kMostSharedBytes));
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>(grid));
  launch.block = dim3(kSelectThreads);
  launch.shared_bytes = shared_bytes;
  launch.stream = stream;
  cuda::Start(launch, kKernel, p, setup);
}

template <int kRows>
void StartMerge(const SelectSm90Params& p, const PieceStore& pieces, int grid, cudaStream_t stream) {
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>(grid), kRows);
  launch.block = dim3(kMergeThreads);
  launch.shared_bytes = sizeof(MergeShared);
  launch.stream = stream;
  cuda::Start(launch, MergeKernel<kRows>, p, pieces);
}

}  // namespace

size_t SelectScratchBytes(int64_t max_rows, int64_t, int64_t topk, int64_t candidate_blocks) {
  const int multiprocessors = Multiprocessors();
  PieceStore none;
  size_t bytes = 0;
  for (const bool restricted : {false, true}) {
    for (const bool publishes : {false, true}) {
      if (restricted && publishes) continue;
      const Shape shape = ShapeOf(max_rows, restricted, publishes, multiprocessors);
      bytes = std::max(bytes, CutScratch(shape, topk, publishes ? candidate_blocks : 0, nullptr, &none));
    }
  }
  return bytes;
}

void SelectSm90(const SelectSm90Params& p, cudaStream_t stream) {
  if (p.max_rows == 0) return;
  const bool restricted = p.candidates != nullptr, publishes = p.candidates_out != nullptr;
  SENKO_CHECK(p.max_rows <= kMaxSelectRowsSm90 && p.ratio >= 1);
  SENKO_CHECK(p.heads >= 1 && p.heads <= kMaxIndexHeadsSm90 && (p.dim == 32 || p.dim == 64 || p.dim == 128));
  SENKO_CHECK(p.topk >= 1 && p.topk <= kMaxSelectTopkSm90 && p.topk <= p.selected_stride);
  SENKO_CHECK(IsPowerOfTwo(p.entries.entries_per_page) && p.entries.entries_per_page >= 32);
  SENKO_CHECK(p.entries.key_value_offset % 16 == 0 && p.entries.key_value_bytes % 16 == 0 &&
              p.entries.page_bytes % 16 == 0 && p.entries.key_scale_offset % 4 == 0);
  SENKO_CHECK(!(restricted && publishes));
  if (restricted || publishes) {
    SENKO_CHECK(p.candidate_block_size <= 32 && IsPowerOfTwo(p.candidate_block_size) && p.candidate_blocks >= 1 &&
                p.candidate_blocks <= kMaxCandidateBlocksSm90 && p.candidate_blocks <= p.candidate_stride);
  }
  const Shape shape = ShapeOf(p.max_rows, restricted, publishes, Multiprocessors());
  Setup setup{};
  setup.page_shift = std::countr_zero(static_cast<uint64_t>(p.entries.entries_per_page));
  setup.block_shift = restricted ? std::countr_zero(static_cast<uint64_t>(p.candidate_block_size)) : 0;
  const size_t bytes = CutScratch(shape, p.topk, publishes ? p.candidate_blocks : 0, p.scratch, &setup.pieces);
  SENKO_CHECK(p.scratch != nullptr && bytes <= p.scratch_bytes);
  if (shape.unit_rows == 1) {
    if (publishes) {
      StartScan<RowKernel<true>>(p, setup, shape.grid, sizeof(RowShared<true>), stream);
    } else {
      StartScan<RowKernel<false>>(p, setup, shape.grid, sizeof(RowShared<false>), stream);
    }
    StartMerge<1>(p, setup.pieces, shape.grid, stream);
  } else if (shape.unit_rows == 4) {
    StartScan<UnitKernel<4>>(p, setup, shape.grid, sizeof(UnitShared<4>), stream);
    StartMerge<4>(p, setup.pieces, shape.grid, stream);
  } else {
    StartScan<UnitKernel<8>>(p, setup, shape.grid, sizeof(UnitShared<8>), stream);
    StartMerge<8>(p, setup.pieces, shape.grid, stream);
  }
}

}  // namespace senko::ops
