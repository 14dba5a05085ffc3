// One block a latent, eight columns a thread, and the pairs that wait in the slots. Bounded by reading (c, z).
#include <cuda_runtime.h>

#include "base/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "ops/kv_write/kv_write_sm90.h"
#include "ops/norm/norm_lanes_sm90.cuh"

namespace senko::ops {
namespace {

constexpr int kMostWarps = 32;
constexpr int kCopyThreads = 256;

// (c, z) of the pending token of `group` in a slot. A group's index is below 2^32, the most that positions allow.
__device__ float* Pending(uint8_t* slot, int64_t offset, int64_t group, int64_t pending_rows, int64_t dim) {
  const uint32_t row = static_cast<uint32_t>(group) % static_cast<uint32_t>(pending_rows);
  return reinterpret_cast<float*>(slot + offset) + int64_t{row} * 2 * dim;
}

// The softmax over two tokens, each step rounded to float32, the sum as rows of Value are.
template <typename Value>
__device__ void PoolPair(const float* first, const float* second, int64_t dim, float (&x)[8]) {
  float c0[8], z0[8], c1[8], z1[8];
  sm90::LoadFloats(second, c1);
  sm90::LoadFloats(second + dim, z1);
  sm90::LoadFloats(first, c0);
  sm90::LoadFloats(first + dim, z0);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    // The larger of the two exponentials is exp(0) = 1, but both are taken: a NaN must reach both weights.
    const float top = fmaxf(z0[i], z1[i]);
    const float e0 = expf(__fsub_rn(z0[i], top)), e1 = expf(__fsub_rn(z1[i], top));
    const float sum = __fadd_rn(e0, e1);
    x[i] = __fadd_rn(__fmul_rn(__fdiv_rn(e0, sum), c0[i]), __fmul_rn(__fdiv_rn(e1, sum), c1[i]));
  }
  sm90::RoundRow8<Value>(x);
}

template <typename Value, int kRatio>
__global__ __launch_bounds__(32 * kMostWarps) void CompressKernel(const BasicCompressSm90Params<Value> p) {
  __shared__ __align__(16) float warp_sums[32];
  const int column = static_cast<int>(threadIdx.x) * 8;
  const int dim = static_cast<int>(p.dim), warps = static_cast<int>(blockDim.x) / 32;
  const bool works = column < dim;
  float x[8] = {}, weight[8] = {};
  if (works) sm90::LoadFloats(p.norm_weight + column, weight);
  if (threadIdx.x < 32) sm90::ZeroBeyond(warp_sums, warps, static_cast<int>(threadIdx.x));
  cuda::WaitForPrevious();
  const int64_t i = blockIdx.x;
  if (i >= *p.count) return;
  const LatentRef ref = p.latents[i];
  if (works) {
    if constexpr (kRatio == 1) {
      sm90::LoadRow8(p.c + ref.row * p.dim + column, x);
    } else {
      const float* first = ref.row_prev >= 0 ? p.cz + ref.row_prev * 2 * p.dim
                                             : Pending(p.sequences[ref.sequence].slot, p.pending_offset, ref.entry,
                                                       p.pending_rows, p.dim);
      PoolPair<Value>(first + column, p.cz + ref.row * 2 * p.dim + column, p.dim, x);
    }
  }
  cuda::LetNextBegin();
  const float sum = sm90::WarpSumOfSquares(x);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sm90::Normalise<Value>(x, weight, sm90::NormScale(warp_sums, warps, dim, p.rms_eps));
  if (works) sm90::StoreRow8(p.out + i * p.dim + column, x);
}

// Block (sequence, k): the k-th of the sequence's last 2 * pending_rows rows.
__global__ __launch_bounds__(kCopyThreads) void PendingStoreKernel(const PendingStoreSm90Params p) {
  cuda::WaitForPrevious();
  const int64_t sequence = blockIdx.x;
  if (sequence >= *p.num_sequences) return;
  const int64_t count = p.row_counts[sequence];
  const int64_t k = max(count - 2 * p.pending_rows, int64_t{0}) + blockIdx.y;
  if (k >= count) return;
  const SequenceKv& s = p.sequences[sequence];
  const int64_t row = s.staging_begin + k, position = p.positions[row];
  if (position % 2 != 0) return;
  const auto* from = reinterpret_cast<const float4*>(p.cz + row * 2 * p.dim);
  auto* to = reinterpret_cast<float4*>(Pending(s.slot, p.pending_offset, position / 2, p.pending_rows, p.dim));
  for (int64_t piece = threadIdx.x; piece < p.dim / 2; piece += kCopyThreads) to[piece] = from[piece];
}

template <typename Value>
void StartCompress(const BasicCompressSm90Params<Value>& p, cudaStream_t stream) {
  if (p.max_count == 0) return;
  const int warps = sm90::WarpsOfRow(p.dim);
  SENKO_CHECK((p.ratio == 1 || p.ratio == 2) && p.dim % 32 == 0 && warps <= kMostWarps);
  SENKO_CHECK(p.ratio == 1 || (p.pending_rows >= 1 && p.pending_offset % 16 == 0));
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>(p.max_count));
  launch.block = dim3(static_cast<unsigned>(32 * warps));
  launch.stream = stream;
  cuda::Start(launch, p.ratio == 1 ? CompressKernel<Value, 1> : CompressKernel<Value, 2>, p);
}

}  // namespace

void CompressSm90(const CompressSm90Params& p, cudaStream_t stream) { StartCompress(p, stream); }
void CompressSm90(const BasicCompressSm90Params<float>& p, cudaStream_t stream) { StartCompress(p, stream); }

void PendingStoreSm90(const PendingStoreSm90Params& p, cudaStream_t stream) {
  if (p.max_sequences == 0) return;
  SENKO_CHECK(p.dim % 32 == 0 && p.pending_rows >= 1 && p.pending_offset % 16 == 0);
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>(p.max_sequences), static_cast<unsigned>(2 * p.pending_rows));
  launch.block = dim3(kCopyThreads);
  launch.stream = stream;
  cuda::Start(launch, PendingStoreKernel, p);
}

}  // namespace senko::ops
