// A row of logits over the shared memory of a cluster's blocks, and what blocks and cluster agree on.
//
// Blocks read each other's BlockState between two cluster barriers. A field is written again only behind a later
// barrier than the one behind which others read it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/ptx.cuh"
#include "ops/sample/sample_sm90.h"
#include "ops/select/order_key.h"

namespace senko::ops::sm90 {

inline constexpr int kBlocks = 8;  // of a row
inline constexpr int kThreads = 512;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kBinBits = 9;
inline constexpr int kBins = 1 << kBinBits;
static_assert(kBins == kThreads);    // one a thread
inline constexpr int kListed = 256;  // tokens that are ordered one by one
inline constexpr int kBatch = 3;     // tokens that a thread weighs at a time, so that their arithmetic overlaps
inline constexpr unsigned kAll = 0xFFFFFFFFu;
inline constexpr uint32_t kLowestKey = 0x80000000u - 0x7F800000u;  // OrderKey(-infinity)

struct RowStats {
  uint32_t best_key, best_id;  // OrderKey of the largest logit, its lowest id
  uint32_t least_key;          // of the smallest logit above -infinity
  uint32_t not_finite, lowest, banned;
};

struct Listed {
  uint64_t rank, weight;
};

struct BlockState {
  // Read by other blocks.
  RowStats stats[2];             // of the row drawn from, of the row as it came
  RowStats warp_stats[kWarps];   // of the one measured last
  uint64_t bins[kBins];          // FindCut: masses
  uint64_t beyond;               // and of what lies beyond the bins
  Listed list[kListed];          // FindCut: tokens of the bin that the cut is in, the first `listed`
  uint32_t listed;               // may exceed kListed
  uint32_t bin_least, bin_most;  // their keys
  uint32_t tied_id;
  uint64_t draw_mass;
  int32_t token;
  uint64_t softmax_mass;
  uint32_t above;
  uint32_t top_count;
  uint64_t top[kMaxTopLogprobs];
  // This block's own.
  SampleJobSm90 job;
  uint32_t limbs[3][kBins];  // of the masses, 15 bits each: shared memory adds 32-bit words, and a bin takes fewer than
                             // 2^16 tokens
  Listed items[kListed];
  uint64_t warp_sums[kWarps];
  uint32_t warp_bests[kBlocks * kWarps];  // keys
  uint32_t bar;
  uint32_t bin;
  uint64_t before;  // the mass above it
  uint64_t cut;
  uint32_t drawn_thread;
  uint64_t drawn_offset;
};

// This block's part of the row.
struct Slice {
  float* values;  // shared, padded with -infinity to a multiple of 4
  int begin;      // the first's id, a multiple of 32
  int count;      // ids of the row
  unsigned block;
};

__device__ inline void ClusterSync() {
  cuda::ClusterArrive();
  cuda::ClusterWait();
}

__device__ inline float KeyValue(uint32_t key) {
  return __uint_as_float(key >= 0x80000000u ? key - 0x80000000u : 0x80000000u | (0x80000000u - key));
}

__device__ inline uint64_t SumOverWarp(uint64_t value) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(kAll, value, lanes);
  return value;
}
// Sum of the lanes' values up to this one's.
__device__ inline uint64_t ScanOverWarp(uint64_t value) {
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (unsigned lanes = 1; lanes < 32; lanes *= 2) {
    const uint64_t other = __shfl_up_sync(kAll, value, lanes);
    if (lane >= lanes) value += other;
  }
  return value;
}
// Sum of the threads' values up to this one's, and of all.
__device__ inline uint64_t ScanOverBlock(uint64_t value, BlockState& s, uint64_t* all) {
  const unsigned warp = threadIdx.x / 32;
  value = ScanOverWarp(value);
  __syncthreads();
  if (threadIdx.x % 32 == 31) s.warp_sums[warp] = value;
  __syncthreads();
  uint64_t total = 0;
#pragma unroll
  for (unsigned w = 0; w < kWarps; ++w) {
    const uint64_t sum = s.warp_sums[w];
    if (w < warp) value += sum;
    total += sum;
  }
  *all = total;
  return value;
}

// A block's field, in lane b of every warp block b's; lanes from kBlocks on have `none`. Behind a cluster barrier.
template <typename T>
__device__ T OfBlocks(T* field, T none) {
  const unsigned lane = threadIdx.x % 32;
  return lane < kBlocks ? *cuda::InBlock(field, lane) : none;
}

__device__ inline RowStats NoStats() { return {0, kAll, kAll, 0, 0, 0}; }
__device__ inline RowStats CombineOverWarp(const RowStats& s) {
  RowStats all;
  all.best_key = __reduce_max_sync(kAll, s.best_key);
  all.best_id = __reduce_min_sync(kAll, s.best_key == all.best_key ? s.best_id : kAll);
  all.least_key = __reduce_min_sync(kAll, s.least_key);
  all.not_finite = __reduce_add_sync(kAll, s.not_finite);
  all.lowest = __reduce_add_sync(kAll, s.lowest);
  all.banned = __reduce_add_sync(kAll, s.banned);
  return all;
}
// Of the threads of all blocks. `slot` as in BlockState::stats.
__device__ inline RowStats CombineOverCluster(const RowStats& mine, int slot, BlockState& s) {
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  RowStats stats = CombineOverWarp(mine);
  if (lane == 0) s.warp_stats[warp] = stats;
  __syncthreads();
  if (warp == 0) {
    stats = CombineOverWarp(lane < kWarps ? s.warp_stats[lane] : NoStats());
    if (lane == 0) s.stats[slot] = stats;
  }
  ClusterSync();
  return CombineOverWarp(OfBlocks(&s.stats[slot], NoStats()));
}

// A logit that tokens of at least k warps reach, so at least k tokens; -infinity when there is none. Of the row
// measured last.
__device__ inline float BarOfWarps(BlockState& s, int k) {
  const int thread = static_cast<int>(threadIdx.x);
  if (k > kBlocks * kWarps) return -INFINITY;
  if (thread < kBlocks * kWarps) {
    s.warp_bests[thread] =
        cuda::InBlock(&s.warp_stats[thread % kWarps], static_cast<uint32_t>(thread / kWarps))->best_key;
  }
  __syncthreads();
  if (thread < kBlocks * kWarps) {
    const uint32_t mine = s.warp_bests[thread];
    int before = 0;
    for (int i = 0; i < kBlocks * kWarps; ++i) {
      const uint32_t key = s.warp_bests[i];
      before += key > mine || (key == mine && i < thread) ? 1 : 0;
    }
    if (before == k - 1) s.bar = mine;
  }
  __syncthreads();
  return KeyValue(s.bar);
}

// each(at, x, w) for every `step`-th value from `begin` to `end` that weighs something. `weigh` is given four at a
// time, so that their arithmetic overlaps.
template <typename Weigh, typename Each>
__device__ void ForWeights(const Slice& slice, const Weigh& weigh, int begin, int end, int step, const Each& each) {
  for (int i = begin; i < end; i += kBatch * step) {
    float x[kBatch];
    uint64_t w[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) x[j] = i + j * step < end ? slice.values[i + j * step] : -INFINITY;
    weigh(x, slice.begin + i, step, w);
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      if (w[j] != 0) each(i + j * step, x[j], w[j]);
    }
  }
}

}  // namespace senko::ops::sm90
