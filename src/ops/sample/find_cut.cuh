// Where a prefix of the order (logit descending, id ascending) reaches a mass.
#pragma once

#include <cuda_runtime.h>

#include <cfloat>
#include <climits>
#include <cstdint>

#include "ops/sample/draw_scheme.h"
#include "ops/sample/fixed_weight.cuh"
#include "ops/sample/row_cluster.cuh"

namespace senko::ops::sm90 {

// What tokens weigh in a cut or a draw: a few at a time, 0 for what is not there. Most rows' tokens are turned away by
// one comparison.
struct One {
  float bar;  // logits below it are not there, nor is -infinity

  __device__ void operator()(const float (&x)[kBatch], int, int, uint64_t (&w)[kBatch]) const {
#pragma unroll
    for (int j = 0; j < kBatch; ++j) w[j] = x[j] >= bar && x[j] > -INFINITY ? 1 : 0;
  }
};
// draw_scheme.h's weight.
struct Mass {
  float max;
  double inverse;         // 1 / T
  double least;           // exponent, kLightest or above
  float bar;              // no kept logit is below it
  int last_id = INT_MAX;  // of the kept logits that equal it

  __device__ Mass(float most, double inverse_temperature, double least_exponent)
      : max(most), inverse(inverse_temperature), least(fmax(least_exponent, kLightest)) {
    // A little low, so that rounding loses nobody; the exact test follows.
    const double low = inverse > 0 ? double{max} + least / inverse * (1 + 1e-9) : -HUGE_VAL;
    bar = nextafterf(__double2float_rd(fmax(low, double{-FLT_MAX})), -INFINITY);
  }
  // Only what ranks at least `cut`.
  __device__ void Keep(uint64_t cut) {
    const float value = KeyValue(static_cast<uint32_t>(cut >> 32));
    if (!(value >= bar)) return;
    bar = value;
    last_id = static_cast<int>(RankIndex(cut));
  }

  __device__ void operator()(const float (&x)[kBatch], int id, int step, uint64_t (&w)[kBatch]) const {
    bool any = false;
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      w[j] = 0;
      any |= x[j] >= bar;
    }
    if (!any) return;
    double exponent[kBatch];
    bool there[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      exponent[j] = Exponent(x[j], max, inverse);
      there[j] = exponent[j] >= least && (x[j] > bar || (x[j] == bar && id + j * step <= last_id));
      if (!there[j]) exponent[j] = kLightest;
    }
    HeavyWeights(exponent, w);
#pragma unroll
    for (int j = 0; j < kBatch; ++j) w[j] = there[j] ? w[j] : 0;
  }
};

// Falls with the logit, never rises: by value at first, then by key inside a bin. kBins is outside.
struct Bins {
  // By value: bins of 1 / scale below `top`. The last takes all that is lower, or (open) what is lower is outside.
  float top = 0, scale = 0;
  bool open = false;
  // By key, from `most` down, 2^shift keys a bin.
  int shift = -1;  // below zero: by value
  uint32_t least_key = 0, most_key = 0;

  __device__ uint32_t operator()(float x) const {
    if (shift >= 0) {
      const uint32_t key = OrderKey(x);
      return key >= least_key && key <= most_key ? (most_key - key) >> shift : kBins;
    }
    // Rounded by an addition, which is quicker than a conversion. NaN (0 times infinity) is below all.
    const float bin = fminf((top - x) * scale, static_cast<float>(open ? kBins : kBins - 1));
    return __float_as_uint(bin + 0x1p23f) & (2 * kBins - 1);
  }
  // From least_key to most_key.
  __device__ void ByKey() {
    open = false;
    shift = max(0, 32 - __clz(static_cast<int>(most_key - least_key)) - kBinBits);
  }
  __device__ uint32_t last() const { return open ? kBins : kBins - 1; }
};

// `weigh` of what lies in bins from .. to.
template <typename Weigh>
struct Inside {
  const Weigh& weigh;
  const Bins& bins;
  uint32_t from, to;

  __device__ void operator()(const float (&x)[kBatch], int id, int step, uint64_t (&w)[kBatch]) const {
    float inside[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const uint32_t bin = bins(x[j]);
      inside[j] = bin >= from && bin <= to ? x[j] : -INFINITY;
    }
    weigh(inside, id, step, w);
  }
};

__device__ inline void AddToBin(BlockState& s, uint32_t bin, uint64_t weight) {
  atomicAdd(&s.limbs[0][bin], static_cast<uint32_t>(weight) & 0x7FFFu);
  if (weight >> 15 == 0) return;
  atomicAdd(&s.limbs[1][bin], static_cast<uint32_t>(weight >> 15) & 0x7FFFu);
  if (weight >> 30 != 0) atomicAdd(&s.limbs[2][bin], static_cast<uint32_t>(weight >> 30));
}

// Of the tokens of one logit, the lowest id by which `want` is reached.
template <typename Weigh>
__device__ uint64_t CutTies(BlockState& s, const Slice& slice, const Weigh& weigh, uint32_t key, uint64_t want) {
  const int length = ((slice.count + kThreads - 1) / kThreads) | 1;  // odd: lanes read different banks
  const int begin = min(static_cast<int>(threadIdx.x) * length, slice.count), end = min(begin + length, slice.count);
  uint64_t mass = 0;
  ForWeights(slice, weigh, begin, end, 1, [&](int, float x, uint64_t w) { mass += OrderKey(x) == key ? w : 0; });
  uint64_t all;
  uint64_t through = ScanOverBlock(mass, s, &all);
  if (threadIdx.x == 0) s.draw_mass = all;
  ClusterSync();
  const uint64_t of_blocks = ScanOverWarp(OfBlocks(&s.draw_mass, uint64_t{0}));
  const unsigned owner = __popc(__ballot_sync(kAll, of_blocks < want) & ((1u << kBlocks) - 1));
  if (slice.block == owner) {
    through += __shfl_sync(kAll, of_blocks, static_cast<int>(owner)) - all;
    if (through - mass < want && want <= through) {
      uint64_t sum = through - mass;
      uint32_t id = 0;
      ForWeights(slice, weigh, begin, end, 1, [&](int at, float x, uint64_t w) {
        if (OrderKey(x) != key) return;
        if (sum < want) id = static_cast<uint32_t>(slice.begin + at);
        sum += w;
      });
      s.tied_id = id;
    }
  }
  ClusterSync();
  return (uint64_t{key} << 32) | (kAll - *cuda::InBlock(&s.tied_id, owner));
}

// What the cluster's tokens of the bins from .. to are: lists of them, their number, their keys. Ends behind a cluster
// barrier.
template <typename Weigh>
__device__ uint32_t ListTokens(BlockState& s, const Slice& slice, const Weigh& weigh, Bins& bins, uint32_t from,
                               uint32_t to, uint32_t* of_block) {
  const int thread = static_cast<int>(threadIdx.x);
  uint32_t least = kAll, most = 0;
  ForWeights(slice, Inside<Weigh>{weigh, bins, from, to}, thread, slice.count, kThreads,
             [&](int at, float x, uint64_t w) {
               const uint64_t rank = Rank(x, slice.begin + at);
               const uint32_t place = atomicAdd(&s.listed, 1u);
               if (place < kListed) s.list[place] = {rank, w};
               least = min(least, static_cast<uint32_t>(rank >> 32));
               most = max(most, static_cast<uint32_t>(rank >> 32));
             });
  least = __reduce_min_sync(kAll, least);
  most = __reduce_max_sync(kAll, most);
  if (thread % 32 == 0 && most != 0) {
    atomicMin(&s.bin_least, least);
    atomicMax(&s.bin_most, most);
  }
  ClusterSync();
  *of_block = OfBlocks(&s.listed, 0u);
  bins.least_key = __reduce_min_sync(kAll, OfBlocks(&s.bin_least, kAll));
  bins.most_key = __reduce_max_sync(kAll, OfBlocks(&s.bin_most, 0u));
  return __reduce_add_sync(kAll, *of_block);
}

// Of `left` <= kListed listed tokens, the rank by which `want` is reached. `of_block`: in lane b, how many block b
// lists.
__device__ inline uint64_t CutListed(BlockState& s, uint32_t left, uint32_t of_block, uint64_t want) {
  constexpr unsigned kThreadsEach = kThreads / kBlocks;
  const unsigned thread = threadIdx.x, block = thread / kThreadsEach;
  const uint32_t behind = __shfl_sync(kAll, static_cast<uint32_t>(ScanOverWarp(of_block)), static_cast<int>(block));
  const uint32_t size = __shfl_sync(kAll, of_block, static_cast<int>(block));
  for (uint32_t i = thread % kThreadsEach; i < size; i += kThreadsEach) {
    s.items[behind - size + i] = *cuda::InBlock(&s.list[i], block);
  }
  __syncthreads();
  if (thread < left) {
    const Listed mine = s.items[thread];
    uint64_t above = 0;
    for (uint32_t i = 0; i < left; ++i) above += s.items[i].rank > mine.rank ? s.items[i].weight : 0;
    if (above < want && want <= above + mine.weight) s.cut = mine.rank;
  }
  __syncthreads();
  return s.cut;
}

// The rank at which the tokens from the top on reach target(mass of all) <= that mass. Every thread of the cluster
// calls it and gets it. With `few`, the tokens that weigh something are hoped to be kListed at most.
//
// Counting bins narrows the row to one bin, and that to a bin of it, until few enough tokens are left to compare each
// with each, or one logit. Peaked rows take one round. `bins` are by value; where the cut lies outside of open ones,
// closed ones of `wide` come next.
template <typename Weigh, typename Target>
__device__ uint64_t FindCut(BlockState& s, const Slice& slice, const Weigh& weigh, bool few, Bins bins, float wide,
                            const Target& target) {
  const int thread = static_cast<int>(threadIdx.x);
  uint64_t want = 0;  // of what is inside the bins
  bool first = true;
  if (few) {
    if (thread == 0) s.listed = s.bin_most = 0, s.bin_least = kAll;
    __syncthreads();
    uint32_t of_block;
    bins.open = false;
    const uint32_t left = ListTokens(s, slice, weigh, bins, 0, bins.last(), &of_block);
    want = target(left);
    first = false;
    if (left <= kListed) return CutListed(s, left, of_block, want);
    if (bins.least_key == bins.most_key) return CutTies(s, slice, weigh, bins.most_key, want);
    bins.ByKey();
  }
  for (;;) {
#pragma unroll
    for (auto& limb : s.limbs) limb[thread] = 0;
    __syncthreads();
    uint64_t beyond = 0;
    ForWeights(slice, Inside<Weigh>{weigh, bins, 0, bins.last()}, thread, slice.count, kThreads,
               [&](int, float x, uint64_t w) {
                 const uint32_t bin = bins(x);
                 if (bin < kBins) {
                   AddToBin(s, bin, w);
                 } else {
                   beyond += w;
                 }
               });
    uint64_t all;
    ScanOverBlock(beyond, s, &all);
    if (thread == 0) s.beyond = all;
    s.bins[thread] = s.limbs[0][thread] + (uint64_t{s.limbs[1][thread]} << 15) + (uint64_t{s.limbs[2][thread]} << 30);
    ClusterSync();
    uint64_t mass = 0;
#pragma unroll
    for (unsigned b = 0; b < kBlocks; ++b) mass += *cuda::InBlock(&s.bins[thread], b);
    beyond = SumOverWarp(OfBlocks(&s.beyond, uint64_t{0}));
    if (thread == 0) s.listed = s.bin_most = 0, s.bin_least = kAll;
    const uint64_t through = ScanOverBlock(mass, s, &all);
    if (first) want = target(all + beyond);
    first = false;
    if (want > all) {
      bins.open = false;
      bins.scale = wide;
      ClusterSync();  // the bins are read
      continue;
    }
    if (through - mass < want && want <= through) {
      s.bin = static_cast<uint32_t>(thread);
      s.before = through - mass;
    }
    __syncthreads();
    const uint32_t bin = s.bin;
    want -= s.before;
    uint32_t of_block;
    const uint32_t left = ListTokens(s, slice, weigh, bins, bin, bin, &of_block);
    if (left <= kListed) return CutListed(s, left, of_block, want);
    if (bins.least_key == bins.most_key) return CutTies(s, slice, weigh, bins.most_key, want);
    bins.ByKey();
  }
}

}  // namespace senko::ops::sm90
