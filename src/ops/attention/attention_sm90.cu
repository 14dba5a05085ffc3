// Attention of 64 heads of 512 on wgmma. Some warps bring a row's keys: their packed bytes come by asynchronous copies,
// a block ahead, and go as bf16 into a ring of shared memory. Two warpgroups multiply: each scores all heads and keys
// of a block, so that its weights stay in its registers, and weighs half of the channels. A block of threads takes a
// row after the other, keys of the next on the way while the last is finished.
//
// What bounds it: the tensor cores would need 3,072 clocks a block of keys (scores are done twice), expansion about
// 1,100 issue slots of each of the four schedulers, joining and weights about as many.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "ops/attention/attention_bring_sm90.cuh"
#include "ops/attention/attention_keys_sm90.cuh"
#include "ops/attention/attention_plain_sm90.h"
#include "ops/attention/attention_shared_sm90.cuh"
#include "ops/attention/attention_sm90.h"
#include "ops/attention/attention_together_sm90.cuh"
#include "ops/attention/attention_weigh_sm90.cuh"

namespace senko::ops {
namespace {

using namespace cuda;  // NOLINT: the instructions
using namespace sm90;  // NOLINT: what they are used for

constexpr int kProducerRegisters = 56, kConsumerRegisters = 200;

// A row after the other.
__device__ void Consume(const AttentionSm90Params& p, uint32_t base) {
  const uint32_t full = base + kBarriersAt, empty = full + kStages * 8;
  const int rows = *p.num_rows;
  int row = static_cast<int>(blockIdx.x);
  if (row >= rows) return;
  FetchQueries(p, row, base);
  RowCounts counts(p, row);
  const int lane = static_cast<int>(threadIdx.x) % 32, head = Consumer() % 128 / 32 * 16 + lane / 4;
  const int group = __shfl_sync(0xFFFFFFFFu, Consumer() / 128, 0);
  const float scale = __fmul_rn(__fmul_rn(p.scale, kLog2e), 1 / kKeyScale);
  for (uint32_t i = 0; row < rows; row += static_cast<int>(gridDim.x)) {
    FinishQueries(p, base);
    float o[kParts][kPart / 2];
#pragma unroll
    for (auto& part : o) {
#pragma unroll
      for (float& v : part) v = 0;
    }
    Head2 maximum{{-INFINITY, -INFINITY}}, sum{{0, 0}};
    const int last = counts.Blocks();
    for (int block = 0; block < last; ++block, ++i) {
      const uint32_t slot = i % kStages, tile = base + kKeysAt + slot * kTile;
      const int left = counts.KeysFrom(block);
      WaitBarrier(full + slot * 8, i / kStages & 1);
      uint32_t weights[kKeys / 16][4];
      Head2 fresh, fresh_sum;
      {
        float s[kKeys / 2] = {};
        Score(base, tile, s);
        const int next = row + static_cast<int>(gridDim.x);
        if (block + 1 == last && next < rows) {  // the queries are done with
          ConsumersSync();
          FetchQueries(p, next, base);
          counts = RowCounts(p, next);
        }
        Weights(scale, left, s, weights, &fresh, &fresh_sum);
      }
      float old_weight[2], fresh_weight[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float next = fmaxf(maximum.v[h], fresh.v[h]);
        old_weight[h] = Decay(maximum.v[h], next);
        fresh_weight[h] = Decay(fresh.v[h], next);
        sum.v[h] = Join(sum.v[h], old_weight[h], fresh_sum.v[h], fresh_weight[h]);
        maximum.v[h] = next;
      }
      Weigh(tile, group, weights, old_weight, fresh_weight, o);
      __syncwarp();
      if (lane == 0) Arrive(empty + slot * 8);
    }
    float factors[2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (head + 8 * h < p.heads) factors[h] = OutputFactor(p, head + 8 * h, sum.v[h], maximum.v[h]);
    }
    StoreOutputs(p, row, group, o, factors);
  }
}

template <Regime kRegime>
__global__ __launch_bounds__(kThreads, 1) void AttentionKernel(const __grid_constant__ AttentionSm90Params p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t base = SharedAddress(shared);
  const uint32_t full = base + kBarriersAt, empty = full + kStages * 8;
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < kStages; ++i) {
      InitBarrier(full + i * 8, kProducers);
      InitBarrier(empty + i * 8, kConsumers / 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  WaitForPrevious();
  if ((kRegime != Regime::kWhole)) LetNextBegin();
  if (threadIdx.x < kConsumers) {
    GrowRegisters<kConsumerRegisters>();
    if constexpr ((kRegime != Regime::kWhole)) {
      ConsumeTogether<kRegime>(p, shared, base);
    } else {
      Consume(p, base);
    }
  } else {
    ShrinkRegisters<kProducerRegisters>();
    Produce<kRegime>(p, base, reinterpret_cast<RowKeys*>(shared + kRowsAt));
    if (!(kRegime != Regime::kWhole)) LetNextBegin();
  }
}

// Of this thread's GPU.
int64_t Multiprocessors() {
  int device = 0, count = 0;
  SENKO_CUDA(cudaGetDevice(&device));
  SENKO_CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

template <Regime kRegime>
Launch LaunchOf(unsigned rows, unsigned together, cudaStream_t stream) {
  AllowSharedBytes<AttentionKernel<kRegime>>(kSharedBytes);
  Launch launch;
  launch.grid = dim3(rows, together);
  launch.block = dim3(kThreads);
  launch.cluster = dim3(1, together);
  launch.shared_bytes = kSharedBytes;
  launch.stream = stream;
  return launch;
}

// How many clusters of `size` run at once: each lies within a part of the GPU, and how large those are differs from one
// GPU to another. Any thread.
template <Regime kRegime>
int64_t ClustersAtOnce(unsigned size) {
  static std::atomic<int> known[kMostTogether + 1];
  int count = known[size].load(std::memory_order_relaxed);
  if (count > 0) return count;
  AllowSharedBytes<AttentionKernel<kRegime>>(kSharedBytes);
  SENKO_CUDA(cudaFuncSetAttribute(AttentionKernel<kRegime>, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = 1, attribute.val.clusterDim.y = size, attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1, size);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  SENKO_CUDA(cudaOccupancyMaxActiveClusters(&count, AttentionKernel<kRegime>, &config));
  known[size].store(count, std::memory_order_relaxed);
  return count;
}

// As a cluster for each row, if all of them run at once.
template <Regime kRegime>
bool LaunchTogether(const AttentionSm90Params& p, int64_t blocks, cudaStream_t stream) {
  const auto size = static_cast<unsigned>((blocks + kBlocksOf<kRegime> - 1) / kBlocksOf<kRegime>);
  if (blocks > kMostTogether || p.max_rows > ClustersAtOnce<kRegime>(size)) return false;
  Start(LaunchOf<kRegime>(static_cast<unsigned>(p.max_rows), size, stream), AttentionKernel<kRegime>, p);
  return true;
}

void Check(const AttentionSm90Params& p) {
  SENKO_CHECK(p.heads >= 1 && p.heads <= kHeads && p.dim == kDim && p.rope_dim % 8 == 0 && p.rope_dim <= kMaxRope);
  SENKO_CHECK(p.window.row_stride % 16 == 0 && p.entries.entry_stride % 16 == 0);
}

}  // namespace

void AttentionWholeSm90(const AttentionSm90Params& p, cudaStream_t stream) {
  if (p.max_rows == 0) return;
  Check(p);
  const auto blocks = static_cast<unsigned>(std::min(p.max_rows, Multiprocessors()));
  Start(LaunchOf<Regime::kWhole>(blocks, 1, stream), AttentionKernel<Regime::kWhole>, p);
}

void AttentionSm90(const AttentionSm90Params& p, cudaStream_t stream) {
  if (p.max_rows == 0) return;
  if (p.dim != kDim) return AttentionPlainSm90(p, stream);
  Check(p);
  const int64_t blocks =
      (p.max_window + kKeys - 1) / kKeys + (p.selected != nullptr ? (p.selected_stride + kKeys - 1) / kKeys : 0);
  if (p.max_rows < Multiprocessors() / 2) {
    if (LaunchTogether<Regime::kOne>(p, blocks, stream) || LaunchTogether<Regime::kTwo>(p, blocks, stream)) return;
  }
  AttentionWholeSm90(p, stream);
}

}  // namespace senko::ops
