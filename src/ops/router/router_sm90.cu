// Any number of rows: a warp ranks a row; a block lists an expert's pairs.
#include <cuda_runtime.h>

#include <algorithm>

#include "base/check.h"
#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "ops/router/router_sm90.h"
#include "ops/router/score_sm90.cuh"

namespace senko::ops {
namespace {

constexpr int kThreads = 128;
constexpr int kEach = static_cast<int>(kMaxExpertsSm90) / 32;  // experts of a lane, 32 apart

// Orders as descending value, then ascending id; NaN (as -infinity) last.
__device__ bool Before(float a, int a_id, float b, int b_id) { return a > b || (a == b && a_id < b_id); }

template <typename Value>
__global__ __launch_bounds__(kThreads) void RankKernel(const BasicRouterSm90Params<Value> p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  cuda::WaitForPrevious();
  if (row >= *p.rows) return;
  float* scores = p.scores + row * p.num_experts;
  const float* bias = p.is_image != nullptr && p.is_image[row] != 0 ? p.bias_vl : p.bias;
  const int experts = static_cast<int>(p.num_experts);
  float rank[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int id = i * 32 + lane;
    rank[i] = -INFINITY;
    if (id >= experts) continue;
    const float score = sm90::ExpertScore(__fdiv_rn(scores[id], p.temperature));
    scores[id] = score;
    const float biased = __fadd_rn(score, bias[id]);
    if (!isnan(biased)) rank[i] = biased;
  }
  cuda::LetNextBegin();
  __syncwarp();
  uint32_t taken = 0;  // bit i: rank[i]
  int chosen[kMaxTopkSm90];
#pragma unroll
  for (int k = 0; k < static_cast<int>(kMaxTopkSm90); ++k) {
    if (k >= p.topk) break;
    float best = -INFINITY;
    int best_id = INT_MAX;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int id = i * 32 + lane;
      if (id < experts && (taken >> i & 1u) == 0 && (best_id == INT_MAX || Before(rank[i], id, best, best_id))) {
        best = rank[i];
        best_id = id;
      }
    }
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      const float other = __shfl_xor_sync(0xFFFFFFFFu, best, lanes);
      const int other_id = __shfl_xor_sync(0xFFFFFFFFu, best_id, lanes);
      if (other_id != INT_MAX && (best_id == INT_MAX || Before(other, other_id, best, best_id))) {
        best = other;
        best_id = other_id;
      }
    }
    chosen[k] = best_id;
    if (best_id % 32 == lane) taken |= 1u << (best_id / 32);
  }
  float sum = 1e-20f;
#pragma unroll
  for (int k = 0; k < static_cast<int>(kMaxTopkSm90); ++k) {
    if (k < p.topk) sum = __fadd_rn(sum, scores[chosen[k]]);
  }
  const bool normalise = p.normalise && p.topk > 1;
#pragma unroll
  for (int k = 0; k < static_cast<int>(kMaxTopkSm90); ++k) {
    if (k >= p.topk || lane != k) continue;
    const float score = scores[chosen[k]];
    p.ids[row * p.topk + k] = chosen[k];
    p.weights[row * p.topk + k] = __fmul_rn(normalise ? __fdiv_rn(score, sum) : score, p.scaling);
  }
}

constexpr int kListThreads = 256;

// Pairs of expert blockIdx.x among ids [0, count).
__global__ __launch_bounds__(kListThreads) void CountKernel(const DispatchSm90Params p) {
  __shared__ int total;
  if (threadIdx.x == 0) total = 0;
  cuda::WaitForPrevious();
  __syncthreads();
  const int count = static_cast<int>(*p.rows * p.topk), expert = static_cast<int>(blockIdx.x);
  int mine = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kListThreads) mine += p.ids[i] == expert;
  cuda::LetNextBegin();
  mine = __reduce_add_sync(0xFFFFFFFFu, mine);
  if (threadIdx.x % 32 == 0 && mine > 0) atomicAdd(&total, mine);
  __syncthreads();
  if (threadIdx.x == 0) p.counts[expert] = total;
}

// Sum over the block, known to all threads.
__device__ int BlockSum(int value, int* shared) {
  value = __reduce_add_sync(0xFFFFFFFFu, value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  int sum = 0;
#pragma unroll
  for (int w = 0; w < kListThreads / 32; ++w) sum += shared[w];
  return sum;
}

__global__ __launch_bounds__(kListThreads) void ListKernel(const DispatchSm90Params p) {
  __shared__ int shared[kListThreads / 32];
  cuda::WaitForPrevious();
  const int expert = static_cast<int>(blockIdx.x), experts = static_cast<int>(p.num_experts);
  const int block = static_cast<int>(p.block), count = p.counts[expert];
  int pairs_before = 0, items_before = 0;
  for (int e = static_cast<int>(threadIdx.x); e < expert; e += kListThreads) {
    pairs_before += p.counts[e];
    items_before += (p.counts[e] + block - 1) / block;
  }
  pairs_before = BlockSum(pairs_before, shared);
  items_before = BlockSum(items_before, shared);
  const int items = (count + block - 1) / block;
  cuda::LetNextBegin();
  if (expert == experts - 1 && threadIdx.x == 0) *p.num_items = items_before + items;
  for (int i = static_cast<int>(threadIdx.x); i < items; i += kListThreads) {
    p.items[items_before + i] = {expert, pairs_before + i * block, min(block, count - i * block)};
  }
  if (count == 0) return;
  // In order: four neighbouring ids a thread, each thread behind those before it.
  constexpr int kIds = 4;
  const int ids = static_cast<int>(*p.rows * p.topk);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  int done = pairs_before;
  for (int base = 0; base < ids && done < pairs_before + count; base += kIds * kListThreads) {
    const int begin = base + kIds * static_cast<int>(threadIdx.x);
    uint32_t ours = 0;
#pragma unroll
    for (int k = 0; k < kIds; ++k) ours |= (begin + k < ids && p.ids[begin + k] == expert ? 1u : 0u) << k;
    int through = __popc(ours);  // of this warp's lanes so far, this one's included
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      const int other = __shfl_up_sync(0xFFFFFFFFu, through, lanes);
      if (lane >= lanes) through += other;
    }
    __syncthreads();
    if (lane == 31) shared[warp] = through;
    __syncthreads();
    int to = done + through - __popc(ours), all = 0;
#pragma unroll
    for (int w = 0; w < kListThreads / 32; ++w) {
      to += w < warp ? shared[w] : 0;
      all += shared[w];
    }
#pragma unroll
    for (int k = 0; k < kIds; ++k) {
      if ((ours >> k & 1u) != 0) p.pairs[to++] = begin + k;
    }
    done += all;
  }
}

template <typename Value>
void CheckRouter(const BasicRouterSm90Params<Value>& p) {
  SENKO_CHECK(p.gate.format == WeightFormat::kBf16 && p.gate.out == p.num_experts);
  SENKO_CHECK(p.topk >= 1 && p.topk <= kMaxTopkSm90 && p.topk <= p.num_experts && p.num_experts <= kMaxExpertsSm90);
}

// The gate's outputs lie in p.scores.
template <typename Value>
void StartRank(const BasicRouterSm90Params<Value>& p, cudaStream_t stream) {
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>((p.max_rows + kThreads / 32 - 1) / (kThreads / 32)));
  launch.block = dim3(kThreads);
  launch.stream = stream;
  cuda::Start(launch, RankKernel<Value>, p);
}

}  // namespace

size_t RouterScratchFloats(int64_t num_experts, int64_t hidden, int64_t max_rows) {
  const int64_t few = LinearChunks(hidden) * std::min(max_rows, kFewRoutedRows);
  return static_cast<size_t>(std::max(max_rows, few) * num_experts);
}

void RouteSm90(const RouterSm90Params& r, const DispatchSm90Params& d, cudaStream_t stream) {
  SENKO_CHECK(d.rows == r.rows && d.num_experts == r.num_experts && d.topk == r.topk && d.ids == r.ids);
  if (r.max_rows > 0 && r.max_rows <= kFewRoutedRows) {
    CheckRouter(r);
    return RouteFewSm90(r, d, stream);
  }
  RouterSm90(r, stream);
  DispatchSm90(d, stream);
}

void RouterSm90(const RouterSm90Params& p, cudaStream_t stream) {
  if (p.max_rows == 0) return;
  CheckRouter(p);
  LinearSm90Params gate;
  gate.rows = p.rows;
  gate.max_rows = p.max_rows;
  gate.x = p.x;
  gate.x_stride = p.gate.in;
  gate.weight = p.gate;
  gate.y_float = p.scores;
  gate.y_stride = p.num_experts;
  LinearSm90(gate, stream);
  StartRank(p, stream);
}

void RouterSm90(const BasicRouterSm90Params<float>& p, cudaStream_t stream) {
  if (p.max_rows == 0) return;
  CheckRouter(p);
  LinearFloatSm90Params gate;
  gate.rows = p.rows;
  gate.max_rows = p.max_rows;
  gate.x = p.x;
  gate.x_stride = p.gate.in;
  gate.weight = p.gate;
  gate.y = p.scores;
  gate.y_stride = p.num_experts;
  LinearFloatSm90(gate, stream);
  StartRank(p, stream);
}

void RouteSm90(const BasicRouterSm90Params<float>& r, const DispatchSm90Params& d, cudaStream_t stream) {
  SENKO_CHECK(d.rows == r.rows && d.num_experts == r.num_experts && d.topk == r.topk && d.ids == r.ids);
  RouterSm90(r, stream);
  DispatchSm90(d, stream);
}

void DispatchSm90(const DispatchSm90Params& p, cudaStream_t stream) {
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>(p.num_experts));
  launch.block = dim3(kListThreads);
  launch.stream = stream;
  cuda::Start(launch, CountKernel, p);
  cuda::Start(launch, ListKernel, p);
}

}  // namespace senko::ops
