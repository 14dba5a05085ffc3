// The row into shared memory, and processors.h on it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/ptx.cuh"
#include "ops/sample/row_cluster.cuh"
#include "ops/sample/sample_sm90.h"

namespace senko::ops::sm90 {

// Threads own the same fours here and in MeasureRow; other threads' values are there after a barrier.
__device__ inline void LoadSlice(const SampleSm90Params& p, int row, const Slice& slice) {
  const float* from = p.logits + row * p.vocab + slice.begin;
  if ((reinterpret_cast<uintptr_t>(from) & 15) == 0 && slice.count % 4 == 0) {
    const uint32_t to = cuda::SharedAddress(slice.values);
    for (int i = 4 * static_cast<int>(threadIdx.x); i < slice.count; i += 4 * kThreads) {
      cuda::CopyAsync16(to + static_cast<uint32_t>(i) * 4, from + i, true);
    }
    cuda::CommitCopies();
    cuda::WaitForCopies<0>();
    return;
  }
  for (int i = 4 * static_cast<int>(threadIdx.x); i < slice.count; i += 4 * kThreads) {
#pragma unroll
    for (int j = 0; j < 4; ++j) slice.values[i + j] = i + j < slice.count ? from[i + j] : -INFINITY;
  }
}

__device__ inline bool IsFinite(float x) { return (__float_as_uint(x) & 0x7F800000u) != 0x7F800000u; }

// A token named twice gets both, in the list's order: one warp takes it 32 at a time.
__device__ inline void AddBiases(const SampleSm90Params& p, const SampleJobSm90& job, const Slice& slice,
                                 BlockState& s) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int first = 0; first < job.bias_count; first += kThreads) {
    const int count = min(job.bias_count - first, kThreads);
    const int mine = static_cast<int>(threadIdx.x);
    __syncthreads();
    if (mine < count) {
      const int64_t at = int64_t{job.bias_begin} + first + mine;
      s.limbs[0][mine] = static_cast<uint32_t>(p.bias_ids[at] - slice.begin);
      s.limbs[1][mine] = __float_as_uint(p.bias_values[at]);
    }
    __syncthreads();
    if (threadIdx.x >= 32) continue;
    for (int i = lane; i - lane < count; i += 32) {
      const bool here = i < count && s.limbs[0][i] < static_cast<uint32_t>(slice.count);
      const uint32_t at = here ? s.limbs[0][i] : 0x80000000u + static_cast<uint32_t>(lane);
      const int turn = __popc(__match_any_sync(kAll, at) & ((1u << lane) - 1));
      for (int t = 0; __any_sync(kAll, here && turn >= t); ++t) {
        if (here && turn == t) slice.values[at] = __fadd_rn(slice.values[at], __uint_as_float(s.limbs[1][i]));
        __syncwarp();
      }
    }
  }
  __syncthreads();
}

// How many finite logits this thread turned to -infinity.
__device__ inline uint32_t BanListed(const SampleSm90Params& p, const SampleJobSm90& job, const Slice& slice) {
  uint32_t banned = 0;
  for (int i = static_cast<int>(threadIdx.x); i < job.banned_count; i += kThreads) {
    const int at = p.banned_ids[int64_t{job.banned_begin} + i] - slice.begin;
    if (at < 0 || at >= slice.count) continue;
    const int old = atomicExch(reinterpret_cast<int*>(slice.values + at), static_cast<int>(0xFF800000u));
    banned += IsFinite(__int_as_float(old)) ? 1 : 0;
  }
  return banned;
}

// Mask and penalties on four neighbouring values.
struct FourProcessor {
  static constexpr bool kChanges = true;
  struct Tables {
    uint32_t allowed, seen;  // bit j: of value j
    uint32_t counts[2];      // 16 bits each
  };
  int vocab;
  const uint32_t* allowed;
  const uint32_t* in_prompt;
  const uint16_t* counts;
  bool wide;  // four counts are one load
  const int32_t* extra;
  int extra_count;
  float repetition, frequency, presence;

  __device__ FourProcessor(const SampleSm90Params& p, const SampleJobSm90& job, const Slice& slice)
      : vocab(static_cast<int>(p.vocab)),
        allowed(job.allowed),
        in_prompt(job.in_prompt),
        counts(job.counts),
        wide((reinterpret_cast<uintptr_t>(job.counts) & 7) == 0 && slice.count % 4 == 0),
        extra(p.extra_ids + job.extra_begin),
        extra_count(job.counts != nullptr ? job.extra_count : 0),
        repetition(job.repetition),
        frequency(job.frequency),
        presence(job.presence) {}

  __device__ Tables Fetch(int id) const {
    Tables t;
    t.allowed = allowed != nullptr ? allowed[id / 32] >> (id % 32) : ~0u;
    t.seen = in_prompt != nullptr ? in_prompt[id / 32] >> (id % 32) : 0;
    t.counts[0] = t.counts[1] = 0;
    if (counts == nullptr) return t;
    if (wide) {
      const auto four = *reinterpret_cast<const uint2*>(counts + id);
      t.counts[0] = four.x, t.counts[1] = four.y;
      return t;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (id + j < vocab) t.counts[j / 2] |= uint32_t{counts[id + j]} << (j % 2 * 16);
    }
    return t;
  }

  __device__ uint32_t operator()(float (&x)[4], int id, const Tables& t) const {
    uint32_t count[4], banned = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) count[j] = t.counts[j / 2] >> (j % 2 * 16) & 0xFFFFu;
    for (int e = 0; e < extra_count; ++e) {
      const uint32_t at = static_cast<uint32_t>(extra[e] - id);
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) count[j] += at == j ? 1 : 0;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if ((t.allowed >> j & 1u) == 0 && id + j < vocab) {
        banned += IsFinite(x[j]) ? 1 : 0;
        x[j] = -INFINITY;
      }
      if (count[j] > 0 || (t.seen >> j & 1u) != 0) {
        x[j] = x[j] > 0 ? __fdiv_rn(x[j], repetition) : __fmul_rn(x[j], repetition);
      }
      if (count[j] > 0) {
        x[j] = __fsub_rn(x[j], __fmul_rn(frequency, __uint2float_rn(count[j])));
        x[j] = __fsub_rn(x[j], presence);
      }
    }
    return banned;
  }
};

struct AsItCame {
  static constexpr bool kChanges = false;
  struct Tables {};
  __device__ Tables Fetch(int) const { return {}; }
  __device__ uint32_t operator()(const float (&)[4], int, const Tables&) const { return 0; }
};

// Changes each four of this thread's by `process`, which says how many it banned, and measures it. Tables are fetched
// for several fours at once: the memory's delay is what this costs.
template <typename Process>
__device__ RowStats MeasureRow(const Slice& slice, const Process& process) {
  constexpr int kAhead = 4, kStep = 4 * kThreads;
  RowStats stats = NoStats();
  float best = -INFINITY, least = INFINITY;
  auto* fours = reinterpret_cast<float4*>(slice.values);
  for (int first = 4 * static_cast<int>(threadIdx.x); first < slice.count; first += kAhead * kStep) {
    typename Process::Tables tables[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (first + k * kStep < slice.count) tables[k] = process.Fetch(slice.begin + first + k * kStep);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int i = first + k * kStep;
      if (i >= slice.count) break;
      const float4 four = fours[i / 4];
      float x[4] = {four.x, four.y, four.z, four.w};
      stats.banned += process(x, slice.begin + i, tables[k]);
      if constexpr (Process::kChanges) fours[i / 4] = {x[0], x[1], x[2], x[3]};
      uint32_t magnitude = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (x[j] > best) {
          best = x[j];
          stats.best_id = static_cast<uint32_t>(slice.begin + i + j);
        }
        magnitude = max(magnitude, __float_as_uint(x[j]) & 0x7FFFFFFFu);
      }
      if (magnitude < 0x7F800000u) {
        least = fminf(least, fminf(fminf(x[0], x[1]), fminf(x[2], x[3])));
        continue;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {  // also where the row's end is padded
        if (i + j >= slice.count) break;
        stats.not_finite += IsFinite(x[j]) ? 0 : 1;
        stats.lowest += x[j] == -INFINITY ? 1 : 0;
        if (x[j] > -INFINITY) least = fminf(least, x[j]);
      }
    }
  }
  stats.best_key = OrderKey(best);
  stats.least_key = OrderKey(least);
  return stats;
}

}  // namespace senko::ops::sm90
