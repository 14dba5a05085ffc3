// Where a prefix of the order (logit descending, id ascending) reaches a mass.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/sample/draw_scheme.h"
#include "ops/sample/row_cluster.cuh"

namespace senko::ops::sm90 {

// What tokens weigh in a cut or a draw: four at a time, 0 for what is not there.
struct One {
  __device__ void operator()(const float (&x)[4], int, int, uint64_t (&w)[4]) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) w[j] = x[j] > -INFINITY ? 1 : 0;
  }
};
// draw_scheme.h's weight of tokens that rank at least `floor`.
struct Mass {
  float max;
  double inverse;  // 1 / T
  double least;    // exponent; kLightest or above
  uint64_t floor;

  __device__ void operator()(const float (&x)[4], int id, int step, uint64_t (&w)[4]) const {
    double exponent[4];
    bool there[4], any = false;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      exponent[j] = Exponent(x[j], max, inverse);
      there[j] = exponent[j] >= least && Rank(x[j], id + j * step) >= floor;
      any |= there[j];
    }
    if (!any) {
#pragma unroll
      for (int j = 0; j < 4; ++j) w[j] = 0;
      return;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) w[j] = HeavyWeight(there[j] ? exponent[j] : 0.0);
#pragma unroll
    for (int j = 0; j < 4; ++j) w[j] = there[j] ? w[j] : 0;
  }
};

// Falls with the logit, never rises: by value at first, then by key inside a bin.
struct Bins {
  float top = 0, scale = 0;
  uint32_t least_key = 0, most_key = ~0u;
  int shift = -1;  // of keys; below zero: by value

  // kBins when the value is outside.
  __device__ uint32_t operator()(float x) const {
    if (shift < 0) return static_cast<uint32_t>(min(__float2int_rz((top - x) * scale), kBins - 1));
    const uint32_t key = OrderKey(x);
    return key >= least_key && key <= most_key ? (most_key - key) >> shift : kBins;
  }
};

// `weigh` of what lies in bins [from, to).
template <typename Weigh>
struct Inside {
  const Weigh& weigh;
  const Bins& bins;
  uint32_t from, to;

  __device__ void operator()(const float (&x)[4], int id, int step, uint64_t (&w)[4]) const {
    float inside[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t bin = bins(x[j]);
      inside[j] = bin >= from && bin < to ? x[j] : -INFINITY;
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

// Of the tokens of the cut's bin, all of the same logit, the lowest id by which `want` is reached.
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

// The rank at which the tokens from the top on reach target(mass of all) <= that mass. Every thread of the cluster
// calls it and gets it. `bins`: by value.
//
// Counting bins narrows the row to one bin, and that to a bin of it, until few enough tokens are left to compare each
// with each, or one logit. Peaked rows take one round.
template <typename Weigh, typename Target>
__device__ uint64_t FindCut(BlockState& s, const Slice& slice, const Weigh& weigh, Bins bins, const Target& target) {
  const int thread = static_cast<int>(threadIdx.x);
  uint64_t want = 0;  // of what is inside the bins
  for (bool first = true;; first = false) {
#pragma unroll
    for (auto& limb : s.limbs) limb[thread] = 0;
    __syncthreads();
    ForWeights(slice, Inside<Weigh>{weigh, bins, 0, kBins}, thread, slice.count, kThreads,
               [&](int, float x, uint64_t w) { AddToBin(s, bins(x), w); });
    __syncthreads();
    s.bins[thread] = s.limbs[0][thread] + (uint64_t{s.limbs[1][thread]} << 15) + (uint64_t{s.limbs[2][thread]} << 30);
    ClusterSync();
    uint64_t mass = 0;
#pragma unroll
    for (unsigned b = 0; b < kBlocks; ++b) mass += *cuda::InBlock(&s.bins[thread], b);
    if (thread == 0) {
      s.listed = 0;
      s.bin_least = kAll;
      s.bin_most = 0;
    }
    uint64_t all;
    const uint64_t through = ScanOverBlock(mass, s, &all);
    if (first) want = target(all);
    if (through - mass < want && want <= through) {
      s.bin = static_cast<uint32_t>(thread);
      s.before = through - mass;
    }
    __syncthreads();
    const uint32_t bin = s.bin;
    want -= s.before;
    uint32_t least = kAll, most = 0;
    ForWeights(slice, Inside<Weigh>{weigh, bins, bin, bin + 1}, thread, slice.count, kThreads,
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
    const uint32_t listed = OfBlocks(&s.listed, 0u);
    bins.least_key = __reduce_min_sync(kAll, OfBlocks(&s.bin_least, kAll));
    bins.most_key = __reduce_max_sync(kAll, OfBlocks(&s.bin_most, 0u));
    const uint32_t left = __reduce_add_sync(kAll, listed);
    if (left <= kListed) {
      const auto through_blocks = static_cast<uint32_t>(ScanOverWarp(listed));
      // The lists one behind the other; a block of the cluster per two warps.
      const unsigned block = static_cast<unsigned>(thread) / (kThreads / kBlocks);
      const uint32_t size = __shfl_sync(kAll, listed, static_cast<int>(block));
      const uint32_t to = __shfl_sync(kAll, through_blocks, static_cast<int>(block)) - size;
      for (uint32_t i = static_cast<uint32_t>(thread) % (kThreads / kBlocks); i < size; i += kThreads / kBlocks) {
        s.items[to + i] = *cuda::InBlock(&s.list[i], block);
      }
      __syncthreads();
      if (static_cast<uint32_t>(thread) < left) {
        const Listed mine = s.items[thread];
        uint64_t above = 0;
        for (uint32_t i = 0; i < left; ++i) above += s.items[i].rank > mine.rank ? s.items[i].weight : 0;
        if (above < want && want <= above + mine.weight) s.cut = mine.rank;
      }
      __syncthreads();
      return s.cut;
    }
    if (bins.least_key == bins.most_key) return CutTies(s, slice, weigh, bins.most_key, want);
    bins.shift = max(0, 32 - __clz(static_cast<int>(bins.most_key - bins.least_key)) - 9);  // 2^9 bins
  }
}

}  // namespace senko::ops::sm90
