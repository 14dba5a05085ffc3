// The k best of a list of ranks (order_key.h), in the list's order. Ranks are unique, so the k best are one set.
//
// A radix search from the highest bit in which the ranks differ, eight bits a pass, finds a bound that exactly k ranks
// reach; two passes are usual, ties of any number are no special case. 0 is no rank.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace senko::ops {

// Ranks in [low, low + 2^bits) are searched.
struct RankWindow {
  uint64_t low;
  int bits;

  __device__ int Shift() const { return bits > 8 ? bits - 8 : 0; }
  __device__ bool Holds(uint64_t rank) const { return rank >= low && (bits >= 64 || (rank - low) >> bits == 0); }
  __device__ int Bin(uint64_t rank) const { return static_cast<int>((rank - low) >> Shift()); }
};

__device__ inline RankWindow WindowOf(uint32_t least_key, uint32_t most_key) {
  return {uint64_t{least_key} << 32, 32 + (32 - __clz(static_cast<int>(most_key - least_key)))};
}

// Narrows the window to the bin that holds the `need`-th best by the counts of all bins; true when that bin is taken
// whole, and window->low the bound. All lanes of a warp; histogram[256].
__device__ inline bool Narrow(const int* histogram, RankWindow* window, int* need) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int counts[8], sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum += counts[i] = histogram[255 - 8 * lane - i];
  int through = sum;
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const int other = __shfl_up_sync(0xFFFFFFFFu, through, lanes);
    if (lane >= lanes) through += other;
  }
  int above = through - sum, bin = 0, count = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (above < *need) {
      bin = 255 - 8 * lane - i;
      count = counts[i];
      if (above + count >= *need) break;
    }
    above += counts[i];
  }
  const int owner = __ffs(static_cast<int>(__ballot_sync(0xFFFFFFFFu, through >= *need))) - 1;
  bin = __shfl_sync(0xFFFFFFFFu, bin, owner);
  count = __shfl_sync(0xFFFFFFFFu, count, owner);
  above = __shfl_sync(0xFFFFFFFFu, above, owner);
  *need -= above;
  const int shift = window->Shift();
  window->low += static_cast<uint64_t>(bin) << shift;
  window->bits = shift;
  return count == *need;
}

// ---- a block of threads ----

template <int kThreads>
struct KeepShared {
  int histogram[3][256];
  uint32_t least[kThreads / 32], most[kThreads / 32];
  int counts[kThreads / 32];
};

// The k best of load(0 .. n - 1), n <= kThreads * kEach, to `to`, which may be what is loaded from. Returns how many,
// and in *bound a rank that they all reach and that k of the ranks seen reach (0 with fewer). All threads; ends with
// the block in step.
template <int kThreads, int kEach, typename Load>
__device__ int KeepBest(int n, int k, Load load, uint64_t* to, uint64_t* bound, KeepShared<kThreads>* shared) {
  constexpr int kWarps = kThreads / 32;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int each = (n + kThreads - 1) / kThreads, begin = warp * each * 32 + lane;
  uint64_t ranks[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) ranks[i] = i < each && begin + i * 32 < n ? load(begin + i * 32) : 0;
  *bound = 0;
  if (n > k) {
    uint32_t least = ~0u, most = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (ranks[i] == 0) continue;
      least = min(least, static_cast<uint32_t>(ranks[i] >> 32));
      most = max(most, static_cast<uint32_t>(ranks[i] >> 32));
    }
    least = __reduce_min_sync(0xFFFFFFFFu, least);
    most = __reduce_max_sync(0xFFFFFFFFu, most);
    if (lane == 0) {
      shared->least[warp] = least;
      shared->most[warp] = most;
    }
    for (int i = thread; i < 256; i += kThreads) shared->histogram[0][i] = 0;
    __syncthreads();
    for (int w = 0; w < kWarps; ++w) {
      least = min(least, shared->least[w]);
      most = max(most, shared->most[w]);
    }
    RankWindow window = WindowOf(least, most);
    int need = k;
    for (int pass = 0;; ++pass) {
      int* const histogram = shared->histogram[pass % 3];
      // Last read two passes ago.
      for (int i = thread; i < 256; i += kThreads) shared->histogram[(pass + 1) % 3][i] = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (ranks[i] != 0 && window.Holds(ranks[i])) atomicAdd(&histogram[window.Bin(ranks[i])], 1);
      }
      __syncthreads();
      if (Narrow(histogram, &window, &need)) break;
    }
    *bound = window.low;
  }
  int mine = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) mine += ranks[i] != 0 && ranks[i] >= *bound;
  mine = __reduce_add_sync(0xFFFFFFFFu, mine);
  if (lane == 0) shared->counts[warp] = mine;
  __syncthreads();  // and everything is loaded
  int at = 0, all = 0;
  for (int w = 0; w < kWarps; ++w) {
    at += w < warp ? shared->counts[w] : 0;
    all += shared->counts[w];
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const bool kept = ranks[i] != 0 && ranks[i] >= *bound;
    const uint32_t lanes = __ballot_sync(0xFFFFFFFFu, kept);
    if (kept) to[at + __popc(lanes & ((1u << lane) - 1))] = ranks[i];
    at += __popc(lanes);
  }
  __syncthreads();
  return all;
}

// ---- a warp ----

// The same for a list in shared memory, in place; n > k >= 1. histogram[256] is the warp's own.
__device__ inline int KeepBestOfWarp(uint64_t* list, int n, int k, uint64_t* bound, int* histogram) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t least = ~0u, most = 0;
  __syncwarp();
  for (int i = lane; i < n; i += 32) {
    least = min(least, static_cast<uint32_t>(list[i] >> 32));
    most = max(most, static_cast<uint32_t>(list[i] >> 32));
  }
  RankWindow window = WindowOf(__reduce_min_sync(0xFFFFFFFFu, least), __reduce_max_sync(0xFFFFFFFFu, most));
  int need = k;
  do {
#pragma unroll
    for (int i = 0; i < 8; ++i) histogram[i * 32 + lane] = 0;
    __syncwarp();
#pragma unroll 4
    for (int i = lane; i < n; i += 32) {
      const uint64_t rank = list[i];
      if (window.Holds(rank)) atomicAdd(&histogram[window.Bin(rank)], 1);
    }
    __syncwarp();
    const bool found = Narrow(histogram, &window, &need);
    __syncwarp();
    if (found) break;
  } while (true);
  *bound = window.low;
  int kept = 0;
  for (int base = 0; base < n; base += 32) {
    const uint64_t rank = base + lane < n ? list[base + lane] : 0;
    const bool keeps = base + lane < n && rank >= *bound;
    const uint32_t lanes = __ballot_sync(0xFFFFFFFFu, keeps);  // all have read: places up to here may be written
    if (keeps) list[kept + __popc(lanes & ((1u << lane) - 1))] = rank;
    kept += __popc(lanes);
  }
  __syncwarp();
  return kept;
}

}  // namespace senko::ops
