// The draw and the log-probabilities of a row that lies in a cluster's shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cfloat>
#include <climits>
#include <cstdint>

#include "ops/sample/draw_scheme.h"
#include "ops/sample/find_cut.cuh"
#include "ops/sample/row_cluster.cuh"
#include "ops/sample/sample_sm90.h"

namespace senko::ops::sm90 {

// The rank of the k-th token, 1 <= k < how many are above -infinity. `stats` are the cluster's, measured last.
__device__ inline uint64_t FindKth(const RowStats& stats, const Slice& slice, BlockState& s, int64_t k) {
  // Counts do not care how the logit grows: the bins share out what lies between the smallest and the largest.
  Bins bins;
  bins.top = KeyValue(stats.best_key);
  bins.scale = static_cast<float>(kBins) / (bins.top - KeyValue(stats.least_key));
  const float bar = BarOfWarps(s, static_cast<int>(min(k, int64_t{INT_MAX})));
  return FindCut(s, slice, One{bar}, bar > -INFINITY, bins, bins.scale,
                 [k](uint64_t) { return static_cast<uint64_t>(k); });
}

// The token at the uniform offset into the kept weights by ascending id. Every thread of the cluster gets it.
__device__ inline int32_t DrawToken(const SampleJobSm90& job, const Mass& mass, const Slice& slice, BlockState& s) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int length = ((slice.count + kThreads - 1) / kThreads) | 1;  // odd: lanes read different banks
  const int begin = min(thread * length, slice.count), end = min(begin + length, slice.count);
  uint64_t sum = 0;
  ForWeights(slice, mass, begin, end, 1, [&](int, float, uint64_t w) { sum += w; });
  uint64_t all;
  const uint64_t through = ScanOverBlock(sum, s, &all);
  if (thread == 0) s.draw_mass = all;
  ClusterSync();
  const uint64_t of_blocks = ScanOverWarp(OfBlocks(&s.draw_mass, uint64_t{0}));
  SampleParams sample;
  sample.seed = job.seed;
  sample.choice = job.choice;
  sample.position = job.position;
  uint64_t offset = DrawOffset(sample, __shfl_sync(kAll, of_blocks, kBlocks - 1));
  const unsigned owner = __popc(__ballot_sync(kAll, of_blocks <= offset) & ((1u << kBlocks) - 1));
  if (slice.block == owner) {
    offset -= __shfl_sync(kAll, of_blocks, static_cast<int>(owner)) - all;
    if (through - sum <= offset && offset < through) {
      s.drawn_thread = static_cast<uint32_t>(thread);
      s.drawn_offset = offset - (through - sum);
    }
    __syncthreads();
    if (thread < 32) {  // the lanes share out that thread's tokens
      const int first = static_cast<int>(s.drawn_thread) * length, last = min(first + length, slice.count);
      offset = s.drawn_offset;
      for (int i = first; i < last; i += 32) {
        uint64_t w = 0;
        ForWeights(slice, mass, i + lane, min(i + lane + 1, last), 1, [&](int, float, uint64_t one) { w = one; });
        const uint64_t upto = ScanOverWarp(w);
        const unsigned beyond = __ballot_sync(kAll, offset < upto);
        if (beyond != 0) {
          if (lane == 0) s.token = slice.begin + i + __ffs(static_cast<int>(beyond)) - 1;
          break;
        }
        offset -= __shfl_sync(kAll, upto, 31);
      }
    }
  }
  ClusterSync();
  return *cuda::InBlock(&s.token, owner);
}

// sample.h's. `stats` are the cluster's, of the row as processed.
__device__ inline int32_t SampleRow(const SampleSm90Params& p, const SampleJobSm90& job, const RowStats& stats,
                                    const Slice& slice, BlockState& s) {
  if (stats.not_finite != stats.banned || stats.lowest != stats.banned) return static_cast<int32_t>(kRowNotFinite);
  if (stats.banned == p.vocab) return static_cast<int32_t>(kNothingAllowed);
  if (IsGreedy(job.temperature)) return static_cast<int32_t>(stats.best_id);
  Mass mass(KeyValue(stats.best_key), 1.0 / static_cast<double>(job.temperature), job.least_exponent);
  if (job.top_k > 0 && job.top_k < p.vocab - stats.banned) mass.Keep(FindKth(stats, slice, s, job.top_k));
  if (!(job.top_p >= 1)) {
    // Few tokens lie sixteen units of the exponent below the top or nearer, and nuclei end there.
    constexpr double kNear = 16;
    Bins bins;
    bins.top = mass.max;
    bins.scale = static_cast<float>(mass.inverse * (kBins / kNear));
    bins.open = true;
    const float top_p = job.top_p, wide = static_cast<float>(mass.inverse * (kBins / -kLightest));
    mass.Keep(FindCut(s, slice, mass, false, bins, wide, [top_p](uint64_t all) { return NucleusMass(top_p, all); }));
  }
  return DrawToken(job, mass, slice, s);
}

// logprobs.h's, of the row as it came, which `slice` holds. False when a logit is not finite.
__device__ inline bool WriteLogprobs(const SampleSm90Params& p, const SampleJobSm90& job, const RowStats& stats,
                                     const Slice& slice, BlockState& s, int32_t token, SampleResultSm90* result) {
  if (stats.not_finite != 0) return false;
  const int thread = static_cast<int>(threadIdx.x);
  const Mass mass(KeyValue(stats.best_key), 1.0, kLightest);
  const float own = p.logits[job.row * p.vocab + token];
  uint64_t sum = 0, all;
  uint32_t above = 0;
  ForWeights(slice, mass, thread, slice.count, kThreads, [&](int, float, uint64_t w) { sum += w; });
  for (int i = thread; i < slice.count; i += kThreads) {
    const float x = slice.values[i];
    above += x > own || (x == own && slice.begin + i < token) ? 1 : 0;
  }
  ScanOverBlock(sum, s, &all);
  if (thread == 0) s.softmax_mass = all;
  ScanOverBlock(above, s, &all);
  if (thread == 0) {
    s.above = static_cast<uint32_t>(all);
    s.top_count = 0;
  }
  ClusterSync();
  const uint64_t row_mass = SumOverWarp(OfBlocks(&s.softmax_mass, uint64_t{0}));
  const uint32_t row_above = __reduce_add_sync(kAll, OfBlocks(&s.above, 0u));
  const auto entry = [&](float x, int32_t id, int64_t rank) {
    const double log_mass = log(ldexp(static_cast<double>(row_mass), -kWeightBits));
    const double logprob = Exponent(x, mass.max, 1.0) - log_mass;
    return LogprobEntry{id, static_cast<float>(fmax(logprob, double{-FLT_MAX})), rank};
  };
  const bool writes = slice.block == 0;
  if (writes && thread == 0) result->own = entry(own, token, int64_t{row_above} + 1);
  const int64_t top = min(int64_t{job.top_logprobs}, p.vocab);
  if (top == 0) return true;

  const uint64_t cut = top < p.vocab ? FindKth(stats, slice, s, top) : 0;
  const float bar = KeyValue(static_cast<uint32_t>(cut >> 32));
  for (int i = thread; i < slice.count; i += kThreads) {
    const float x = slice.values[i];
    if (cut != 0 && x < bar) continue;
    const uint64_t rank = Rank(x, slice.begin + i);
    if (rank >= cut) s.top[atomicAdd(&s.top_count, 1u)] = rank;
  }
  ClusterSync();
  if (!writes) return true;
  const uint32_t counts = OfBlocks(&s.top_count, 0u);
  const auto behind = static_cast<uint32_t>(ScanOverWarp(counts));
  if (thread >= 32) return true;
  uint64_t mine = 0;  // lane l: the l-th of the blocks' lists
  for (unsigned b = 0; b < kBlocks; ++b) {
    const uint32_t size = __shfl_sync(kAll, counts, static_cast<int>(b));
    const uint32_t begin = __shfl_sync(kAll, behind, static_cast<int>(b)) - size;
    const uint32_t at = static_cast<uint32_t>(thread) - begin;
    if (at < size) mine = cuda::InBlock(s.top, b)[at];
  }
  int place = 0;
  for (int lane = 0; lane < 32; ++lane) place += __shfl_sync(kAll, mine, lane) > mine;
  if (thread < top) {
    const auto id = static_cast<int32_t>(RankIndex(mine));
    result->top[place] = entry(KeyValue(static_cast<uint32_t>(mine >> 32)), id, place + 1);
  }
  return true;
}

}  // namespace senko::ops::sm90
