// Routing of few rows in two launches: the gate's chunks of K side by side, then one cluster of blocks that adds them,
// scores and ranks its rows, and of which the first block lists the pairs. What bounds it is the chain of dependent
// steps, so a warp ranks a row out of shared memory, and the lists follow from one bit per expert and row.
#include <cuda_runtime.h>

#include <algorithm>

#include "base/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "ops/router/router_sm90.h"
#include "ops/router/score_sm90.cuh"

namespace senko::ops {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kMostBlocks = 8;                                             // of a cluster
constexpr int kMostRows = static_cast<int>(kFewRoutedRows) / kMostBlocks;  // of a block
constexpr int kMostExperts = static_cast<int>(kMaxExpertsSm90);
constexpr int kMostTopk = static_cast<int>(kMaxTopkSm90);
static_assert(kMostRows <= kWarps && kFewRoutedRows == 64 && kMostExperts <= 2 * kThreads);

struct Args {
  RouterSm90Params r;
  DispatchSm90Params d;
  int chunks;
  int block_rows;
};

// A score's rank: unsigned integers in the order of the floats, above 0 also for the lowest.
__device__ uint32_t RankKey(float biased) {
  const uint32_t bits = __float_as_uint(isnan(biased) ? -INFINITY : __fadd_rn(biased, 0.0f));  // no -0
  return bits ^ ((bits >> 31) != 0 ? 0xFFFFFFFFu : 0x80000000u);
}

// The topk best of `keys`, the lower id among equals, lane k with the k-th; a warp. Chosen keys become 0.
__device__ int ChooseRow(uint32_t* keys, int experts, int topk, int lane) {
  uint32_t best = 0;
  int best_id = INT_MAX, chosen = 0;
  const auto look = [&] {
    best = 0;
    best_id = INT_MAX;
    for (int id = lane; id < experts; id += 32) {
      if (keys[id] > best) best = keys[id], best_id = id;
    }
  };
  look();
  for (int k = 0; k < topk; ++k) {
    const uint32_t top = __reduce_max_sync(0xFFFFFFFFu, best);
    const int id = __reduce_min_sync(0xFFFFFFFFu, best == top ? best_id : INT_MAX);
    if (lane == k) chosen = id;
    if (best_id == id) {
      keys[id] = 0;
      look();
    }
  }
  return chosen;
}

// Counts of the experts and where their pairs and items begin, from the rows' bits; all threads of the block.
__device__ void ListPairs(const DispatchSm90Params& d, const uint2* masks, int* begins, uint32_t* warp_sums) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int experts = static_cast<int>(d.num_experts), block = static_cast<int>(d.block);
  // A thread's two experts: pairs in the low half, items in the high one; none exceeds 64 rows of 8.
  uint32_t own[2] = {};
  int counts[2] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int expert = 2 * thread + i;
    if (expert >= experts) continue;
    counts[i] = __popc(masks[expert].x) + __popc(masks[expert].y);
    own[i] = static_cast<uint32_t>(counts[i]) | static_cast<uint32_t>((counts[i] + block - 1) / block) << 16;
    d.counts[expert] = counts[i];
  }
  uint32_t through = own[0] + own[1];
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const uint32_t other = __shfl_up_sync(0xFFFFFFFFu, through, lanes);
    if (lane >= lanes) through += other;
  }
  if (lane == 31) warp_sums[warp] = through;
  __syncthreads();
  uint32_t before = through - own[0] - own[1], total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    before += w < warp ? warp_sums[w] : 0;
    total += warp_sums[w];
  }
  if (thread == 0) *d.num_items = static_cast<int32_t>(total >> 16);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int expert = 2 * thread + i, first = static_cast<int>(before & 0xFFFFu),
              item = static_cast<int>(before >> 16);
    if (expert >= experts) break;
    begins[expert] = first;
    for (int at = 0; at < counts[i]; at += block) {
      d.items[item + at / block] = {expert, first + at, min(block, counts[i] - at)};
    }
    before += own[i];
  }
  __syncthreads();
}

__global__ __launch_bounds__(kThreads) void RouteKernel(const Args args) {
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ uint2 masks[kMostExperts];  // of block 0: bit r of an expert: row r has chosen it
  __shared__ int begins[kMostExperts];
  __shared__ int all_ids[static_cast<int>(kFewRoutedRows) * kMostTopk];  // of block 0
  __shared__ uint32_t warp_sums[kWarps];
  const RouterSm90Params& r = args.r;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int experts = static_cast<int>(r.num_experts), topk = static_cast<int>(r.topk);
  auto* keys = reinterpret_cast<uint32_t*>(shared);  // [block_rows][experts]
  auto* scores = reinterpret_cast<float*>(keys + args.block_rows * experts);
  cuda::LetNextBegin();
  for (int e = thread; e < experts; e += kThreads) masks[e] = make_uint2(0, 0);
  cuda::ClusterArrive();

  cuda::WaitForPrevious();
  const int rows = *r.rows, first_row = static_cast<int>(blockIdx.x) * args.block_rows;
  const int own_rows = min(args.block_rows, rows - first_row);  // may be below 1
  // How many rows live is not waited for.
  const int readable = min(args.block_rows, static_cast<int>(r.max_rows) - first_row);
  for (int i = thread; i < readable * experts; i += kThreads) {
    const int row = first_row + i / experts, e = i % experts;
    const float* part = r.scores + int64_t{row} * experts + e;
    const bool image = r.is_image != nullptr && r.is_image[row] != 0;
    const float bias = image ? r.bias_vl[e] : r.bias[e];
    constexpr int kMostChunks = 8;
    float z = 0;
    for (int first = 0; first < args.chunks; first += kMostChunks) {
      float of_chunk[kMostChunks];  // all on the way at once
#pragma unroll
      for (int c = 0; c < kMostChunks; ++c) {
        if (first + c < args.chunks) of_chunk[c] = part[(first + c) * r.max_rows * experts];
      }
#pragma unroll
      for (int c = 0; c < kMostChunks; ++c) {
        if (first + c < args.chunks) z = first + c == 0 ? of_chunk[c] : __fadd_rn(z, of_chunk[c]);
      }
    }
    const float score = sm90::ExpertScore(__fdiv_rn(z, r.temperature));
    scores[i] = score;
    keys[i] = RankKey(__fadd_rn(score, bias));
  }
  __syncthreads();
  cuda::ClusterWait();  // block 0's masks are clear
  if (warp < own_rows) {
    const int row = first_row + warp;
    const int id = ChooseRow(keys + warp * experts, experts, topk, lane);
    const float score = lane < topk ? scores[warp * experts + id] : 0.0f;
    float sum = 1e-20f;
    for (int k = 0; k < topk; ++k) sum = __fadd_rn(sum, __shfl_sync(0xFFFFFFFFu, score, k));
    if (lane < topk) {
      const bool normalise = r.normalise && topk > 1;
      r.ids[row * topk + lane] = id;
      r.weights[row * topk + lane] = __fmul_rn(normalise ? __fdiv_rn(score, sum) : score, r.scaling);
      *cuda::InBlock(&all_ids[row * topk + lane], 0) = id;
      atomicOr(cuda::InBlock(row < 32 ? &masks[id].x : &masks[id].y, 0), 1u << (row % 32));
    }
  }
  cuda::ClusterArrive();
  cuda::ClusterWait();
  if (blockIdx.x != 0) return;
  ListPairs(args.d, masks, begins, warp_sums);
  if (const int i = thread; i < rows * topk) {
    const int id = all_ids[i], row = i / topk;
    const uint2 mask = masks[id];
    const uint32_t below = (1u << (row % 32)) - 1;
    const int before = row < 32 ? __popc(mask.x & below) : __popc(mask.x) + __popc(mask.y & below);
    args.d.pairs[begins[id] + before] = i;
  }
}

}  // namespace

void RouteFewSm90(const RouterSm90Params& r, const DispatchSm90Params& d, cudaStream_t stream) {
  SENKO_CHECK(r.max_rows > 0 && r.max_rows <= kFewRoutedRows);
  LinearSm90Params gate;
  gate.rows = r.rows;
  gate.max_rows = r.max_rows;
  gate.x = r.x;
  gate.x_stride = r.gate.in;
  gate.weight = r.gate;
  gate.y_chunks = r.scores;
  LinearChunksSm90(gate, stream);
  const int blocks = static_cast<int>(std::min<int64_t>(r.max_rows, kMostBlocks));
  const int block_rows = (static_cast<int>(r.max_rows) + blocks - 1) / blocks;
  constexpr int kMostSharedBytes = kMostRows * kMostExperts * 8;
  cuda::AllowSharedBytes<RouteKernel>(kMostSharedBytes);
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>(blocks));
  launch.block = dim3(kThreads);
  launch.cluster = launch.grid;
  launch.shared_bytes = static_cast<size_t>(block_rows) * static_cast<size_t>(r.num_experts) * 8;
  launch.stream = stream;
  cuda::Start(launch, RouteKernel, Args{r, d, static_cast<int>(LinearChunks(r.gate.in)), block_rows});
}

}  // namespace senko::ops
