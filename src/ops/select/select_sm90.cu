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
#include "ops/select/select_merge_sm90.cuh"
#include "ops/select/select_score_sm90.cuh"
#include "ops/select/select_sm90.h"
#include "ops/select/select_unit_sm90.cuh"
#include "ops/select/select_walk_sm90.cuh"

namespace senko::ops {
namespace {

constexpr int64_t kManyRows = 64;  // above it rows come in units of several, unless restricted

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
__device__ void ScanRow(const SelectSm90Params& p, const SelectSetup& setup, const SelectSegment& segment,
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
                                                                                const SelectSetup setup) {
  extern __shared__ __align__(128) uint8_t memory[];
  auto* const shared = reinterpret_cast<RowShared<kPublishes>*>(memory);
  if (threadIdx.x <= kMaxKeyFold) shared->tables[threadIdx.x] = KeyTable(static_cast<int>(threadIdx.x));
  cuda::WaitForPrevious();
  cuda::LetNextBegin();
  WalkRange<1, kRowStep>(p, setup.pieces, &shared->plan,
                         [&](const SelectSegment& segment) { ScanRow<kPublishes>(p, setup, segment, shared); });
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
void StartScan(const SelectSm90Params& p, const SelectSetup& setup, int grid, size_t shared_bytes,
               cudaStream_t stream) {
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
  SelectSetup setup{};
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
