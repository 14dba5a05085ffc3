// Few rows: a row's blocks of keys are spread over a cluster of blocks of threads, which then join what they come to.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/ptx.cuh"
#include "ops/attention/attention_shared_sm90.cuh"
#include "ops/attention/attention_weigh_sm90.cuh"

namespace senko::ops::sm90 {

using namespace cuda;  // NOLINT: the instructions

// What a thread holds of a block of keys goes to `state`: heads [first_head, first_head + heads).
__device__ inline void LeaveState(float* state, int first_head, int heads, int group,
                                  const float (&o)[kParts][kPart / 2]) {
  const int thread = Consumer(), head = thread % 128 / 32 * 16 + thread % 32 / 4 - first_head;
  if (head < 0 || head >= heads) return;  // the same for a warp
  const int pair = group * 256 + thread % 4 * 2;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
#pragma unroll
    for (int k = 0; k < kPart / 2; k += 2) {
      *reinterpret_cast<float2*>(state + StateAt(head + k / 2 % 2 * 8, pair + part * kPart + k / 4 * 8)) =
          make_float2(o[part][k], o[part][k + 1]);
    }
  }
}

// Of heads [first_head, first_head + heads), an equal share for each block of threads of the cluster: what the row's
// blocks of keys came to, joined as Consume joins those that it takes alone. kAll: there are kMostTogether of them.
template <int kBlocks, bool kAll>
__device__ inline void JoinHeads(const AttentionSm90Params& p, uint8_t* shared, int64_t row, int blocks, int first_head,
                                 int heads) {
  // As many loads from other multiprocessors on the way as registers allow: with two blocks half of the second's state
  // waits in them.
  constexpr int kFours = kDim / 4, kPlaces = kBlocks == 1 ? 4 : 1;
  const int stride = static_cast<int>(gridDim.y) * kConsumers;
  const int end = min(heads, static_cast<int>(p.heads) - first_head) * kFours;
  for (int first = static_cast<int>(blockIdx.y) * kConsumers + Consumer(); first < end; first += kPlaces * stride) {
    float4 fresh[kPlaces][kMostTogether];
#pragma unroll
    for (int place = 0; place < kPlaces; ++place) {
      const int i = min(first + place * stride, end - 1), at = StateAt(i / kFours, i % kFours * 4);
      float* const states[2] = {
          reinterpret_cast<float*>(shared + kFirstAt) + (kBlocks == 1 ? at : at + first_head * kDim),
          reinterpret_cast<float*>(shared + kSecondAt) + at};
#pragma unroll
      for (int b = 0; b < kMostTogether; ++b) {
        if (kAll || b < blocks) {
          fresh[place][b] =
              *reinterpret_cast<const float4*>(InBlock(states[b % kBlocks], static_cast<uint32_t>(b / kBlocks)));
        }
      }
    }
#pragma unroll
    for (int place = 0; place < kPlaces; ++place) {
      const int i = first + place * stride, head = first_head + i / kFours, channel = i % kFours * 4;
      if (i >= end) break;
      const float2* joins = reinterpret_cast<const float2*>(shared + kJoinsAt) + head;
      const float factor = reinterpret_cast<const float*>(shared + kFactorsAt)[head];
      float2 join[kMostTogether];
#pragma unroll
      for (int b = 0; b < kMostTogether; ++b) join[b] = joins[b * kHeads];
      float o[4] = {};
#pragma unroll
      for (int b = 0; b < kMostTogether; ++b) {
        if (!kAll && b >= blocks) break;
#pragma unroll
        for (int k = 0; k < 4; ++k) o[k] = Join(o[k], join[b].x, (&fresh[place][b].x)[k], join[b].y);
      }
      StorePair(p, row, head, channel, o[0], o[1], factor);
      StorePair(p, row, head, channel + 2, o[2], o[3], factor);
    }
  }
  __syncwarp();
}

// How the blocks of a row's heads are joined, from their maxima and sums; every block of threads for itself.
template <int kBlocks>
__device__ inline void MakeJoins(const AttentionSm90Params& p, uint8_t* shared, int blocks) {
  auto* joins = reinterpret_cast<float2*>(shared + kJoinsAt);
  const int head = Consumer();
  if (head < kHeads) {
    float maxima[kMostTogether], sums[kMostTogether];
#pragma unroll
    for (int i = 0; i < kMostTogether; ++i) {
      if (i >= blocks) break;
      const int at = i % kBlocks * kHeads + head;
      maxima[i] = *InBlock(reinterpret_cast<float*>(shared + kMaximaAt) + at, static_cast<uint32_t>(i / kBlocks));
      sums[i] = *InBlock(reinterpret_cast<float*>(shared + kSumsAt) + at, static_cast<uint32_t>(i / kBlocks));
    }
    float maximum = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < kMostTogether; ++i) {
      if (i >= blocks) break;
      const float next = fmaxf(maximum, maxima[i]);
      const float old_weight = Decay(maximum, next), fresh_weight = Decay(maxima[i], next);
      sum = Join(sum, old_weight, sums[i], fresh_weight);
      maximum = next;
      joins[i * kHeads + head] = make_float2(old_weight, fresh_weight);
    }
    reinterpret_cast<float*>(shared + kFactorsAt)[head] = head < p.heads ? OutputFactor(p, head, sum, maximum) : 0;
  }
  ConsumersSync();
}

// Some blocks of a row; then, with the others of the cluster, the row's outputs.
template <Regime kRegime>
__device__ inline void ConsumeTogether(const AttentionSm90Params& p, uint8_t* shared, uint32_t base) {
  constexpr int kBlocks = kBlocksOf<kRegime>;
  const uint32_t full = base + kBarriersAt;
  const int64_t row = blockIdx.x;
  if (row >= *p.num_rows) return;
  FetchQueries(p, row, base);
  const RowCounts counts(p, row);
  const int thread = Consumer(), group = __shfl_sync(0xFFFFFFFFu, thread / 128, 0);
  const float scale = __fmul_rn(__fmul_rn(p.scale, kLog2e), 1 / kKeyScale);
  const int blocks = counts.Blocks(), first = static_cast<int>(blockIdx.y) * kBlocks;
  const int mine = min(kBlocks, blocks - first);  // none, maybe
  float o[kParts][kPart / 2] = {};
  if (mine > 0) {
    FinishQueries(p, base);
    uint32_t weights[kBlocks][kKeys / 16][4];
    Head2 maximum[kBlocks] = {}, sum[kBlocks] = {};
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      if (b >= mine) break;
      WaitBarrier(full + static_cast<uint32_t>(b * 8), 0);
      if (kBlocks > 1 || group == 0) {
        float s[kKeys / 2] = {};
        Score(base, base + kKeysAt + b * kTile, s);
        Weights(scale, counts.KeysFrom(first + b), s, weights[b], &maximum[b], &sum[b]);
      }
      if (kBlocks == 1) ShareWeights(base, group, weights[b], &maximum[b], &sum[b]);
    }
    if (group == 0 && thread % 4 == 0) {  // packed keys are done with
      const int head = thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          reinterpret_cast<float*>(shared + kMaximaAt)[b * kHeads + head + 8 * h] = maximum[b].v[h];
          reinterpret_cast<float*>(shared + kSumsAt)[b * kHeads + head + 8 * h] = sum[b].v[h];
        }
      }
    }
    const float none[2] = {0, 0}, all[2] = {1, 1};
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      if (b >= mine) break;
#pragma unroll
      for (auto& part : o) {
#pragma unroll
        for (float& v : part) v = 0;
      }
      Weigh(base + kKeysAt + b * kTile, group, weights[b], none, all, o);
      ConsumersSync();
      LeaveState(reinterpret_cast<float*>(shared + (b == 0 ? kFirstAt : kSecondAt)), 0, b == 0 ? kHeads : kHeads / 2,
                 group, o);
    }
  } else {
    WaitForCopies<0>();
  }
  ClusterArrive();
  ClusterWait();
  MakeJoins<kBlocks>(p, shared, blocks);
#pragma unroll
  for (int half = 0; half < kBlocks; ++half) {
    if (blocks == kMostTogether) {
      JoinHeads<kBlocks, true>(p, shared, row, blocks, half * kHeads / 2, kHeads / kBlocks);
    } else {
      JoinHeads<kBlocks, false>(p, shared, row, blocks, half * kHeads / 2, kHeads / kBlocks);
    }
    ClusterArrive();  // until all have read this block's states
    ClusterWait();
    if (half + 1 == kBlocks) break;
    if (mine == kBlocks) LeaveState(reinterpret_cast<float*>(shared + kSecondAt), kHeads / 2, kHeads / 2, group, o);
    ClusterArrive();
    ClusterWait();
  }
}

}  // namespace senko::ops::sm90
