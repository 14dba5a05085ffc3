// A thread keeps its eight columns of all four streams in registers from expand to the rounded activations. Of few
// rows, each lies over the blocks of a cluster: one multiprocessor alone takes longer to read a row's slots than the
// blocks to exchange their sums of squares. Bound by latency then, by memory for many rows.
#include <cuda_runtime.h>

#include "base/check.h"
#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "numerics/bf16_lanes.cuh"
#include "numerics/fp8_lanes.cuh"
#include "ops/mhc/mhc_sm90.h"
#include "ops/norm/norm_lanes_sm90.cuh"

namespace senko::ops {
namespace {

constexpr int kStreams = static_cast<int>(kMhcStreams);
constexpr int kMostThreads = 640;
constexpr int kClusterThreads = 128;
constexpr int64_t kClusterRows = 64;

__device__ uint4 Load(const __nv_bfloat16* p) { return *reinterpret_cast<const uint4*>(p); }
__device__ void Store(__nv_bfloat16* p, const uint4& codes) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(codes.x), "r"(codes.y), "r"(codes.z),
               "r"(codes.w)
               : "memory");
}
__device__ float Low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ float High(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

// y of the row at these columns.
template <bool kSlots>
__device__ void LoadY(const MhcSeamSm90Params& p, int64_t row, int column, float (&y)[8]) {
  if constexpr (!kSlots) {
    numerics::LoadBf16x8(p.y + row * p.hidden + column, y);
  } else {
    constexpr int kMost = static_cast<int>(kMhcMostSlots);
    const __nv_bfloat16* at = p.y + row * p.y_slots * p.hidden + column;
    uint4 codes[kMost];  // all on the way at once
#pragma unroll
    for (int s = 0; s < kMost; ++s) {
      if (s < p.y_slots) codes[s] = Load(at + s * p.hidden);
    }
    numerics::UnpackBf16x8(codes[0], y);
#pragma unroll
    for (int s = 1; s < kMost; ++s) {
      if (s >= p.y_slots) break;
      float of_slot[8];
      numerics::UnpackBf16x8(codes[s], of_slot);
#pragma unroll
      for (int i = 0; i < 8; ++i) y[i] = __fadd_rn(y[i], of_slot[i]);
    }
    numerics::RoundBf16x8(y);
  }
}

__device__ void LoadFour(const float* p, float (&v)[kStreams]) {
  const float4 four = *reinterpret_cast<const float4*>(p);
  v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
}

// u = collapse of the row's streams at these columns, `codes`, which have been expanded where there is a y.
template <bool kSlots>
__device__ void ExpandAndCollapse(const MhcSeamSm90Params& p, int64_t row, const __nv_bfloat16* streams, int column,
                                  uint4 (&codes)[kStreams], float (&u)[8]) {
#pragma unroll
  for (int j = 0; j < kStreams; ++j) codes[j] = Load(streams + j * p.hidden);
  const bool expand = p.y != nullptr;
  float y[8] = {}, post[kStreams] = {}, comb[kStreams][kStreams] = {}, pre[kStreams];
  if (expand) {
    LoadFour(p.post + row * kStreams, post);
#pragma unroll
    for (int j = 0; j < kStreams; ++j) LoadFour(p.comb + (row * kStreams + j) * kStreams, comb[j]);
    LoadY<kSlots>(p, row, column, y);
  }
  LoadFour(p.pre + row * kStreams, pre);
#pragma unroll
  for (int w = 0; w < 4; ++w) {  // two columns
    if (expand) {
      uint32_t out[kStreams];
#pragma unroll
      for (int k = 0; k < kStreams; ++k) {
        float low = __fmul_rn(post[k], y[2 * w]), high = __fmul_rn(post[k], y[2 * w + 1]);
#pragma unroll
        for (int j = 0; j < kStreams; ++j) {
          const uint32_t pair = (&codes[j].x)[w];
          low = __fmaf_rn(comb[j][k], Low(pair), low);
          high = __fmaf_rn(comb[j][k], High(pair), high);
        }
        out[k] = numerics::PairToBf16(low, high);
      }
#pragma unroll
      for (int k = 0; k < kStreams; ++k) (&codes[k].x)[w] = out[k];
    }
    float low = 0, high = 0;
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      const uint32_t pair = (&codes[j].x)[w];
      low = __fmaf_rn(pre[j], Low(pair), low);
      high = __fmaf_rn(pre[j], High(pair), high);
    }
    u[2 * w] = low;
    u[2 * w + 1] = high;
  }
  numerics::RoundBf16x8(u);
}

// kCluster: `blocks` blocks a row, one cluster; else one.
template <bool kSlots, bool kCluster>
__global__ __launch_bounds__(kCluster ? kClusterThreads : kMostThreads) void SeamKernel(const MhcSeamSm90Params p,
                                                                                        const int blocks) {
  __shared__ __align__(16) float warp_sums[32];  // of the row
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int block_warps = static_cast<int>(blockDim.x) / 32, warps = kCluster ? blocks * block_warps : block_warps;
  const int rank = kCluster ? static_cast<int>(blockIdx.x) % blocks : 0;
  const int warp = rank * block_warps + thread / 32;  // of the row
  const int column = (rank * static_cast<int>(blockDim.x) + thread) * 8;
  const bool works = column < p.hidden;
  if (thread < 32) sm90::ZeroBeyond(warp_sums, warps, lane);
  float weight[8] = {};
  if constexpr (kCluster) {
    cuda::LetNextBegin();
    cuda::ClusterArriveRelaxed();
    if (works) sm90::LoadFloats(p.norm_weight + column, weight);
  }
  cuda::WaitForPrevious();
  const int64_t row = kCluster ? static_cast<int>(blockIdx.x) / blocks : static_cast<int>(blockIdx.x);
  const bool live = row < *p.rows;  // of all blocks of a cluster, which do not wait for the answer
  if (!kCluster && !live) return;
  __nv_bfloat16* streams = p.streams + row * kStreams * p.hidden + column;
  uint4 codes[kStreams];
  float u[8] = {};
  if (works) ExpandAndCollapse<kSlots>(p, row, streams, column, codes, u);
  const auto store_streams = [&] {
    if (!works || !live || p.y == nullptr) return;
#pragma unroll
    for (int k = 0; k < kStreams; ++k) Store(streams + k * p.hidden, codes[k]);
  };
  const float sum = sm90::WarpSumOfSquares(u);
  if constexpr (kCluster) {
    cuda::ClusterWait();
    if (lane < blocks) *cuda::InBlock(&warp_sums[warp], static_cast<uint32_t>(lane)) = sum;
    cuda::ClusterArrive();
    store_streams();  // not before: to arrive is to wait for what has been written
    cuda::ClusterWait();
  } else {
    store_streams();
    cuda::LetNextBegin();
    if (lane == 0) warp_sums[warp] = sum;
    if (works) sm90::LoadFloats(p.norm_weight + column, weight);
    __syncthreads();
  }
  const float scale = sm90::NormScale(warp_sums, warps, static_cast<int>(p.hidden), p.rms_eps);
  sm90::Normalise(u, weight, scale);
  if (!live) return;
  if (works) numerics::StoreBf16x8(p.x + row * p.hidden + column, u);
  if (p.xq == nullptr) return;
  numerics::RoundFp8OverLanes(u);
  if (works) numerics::StoreBf16x8(p.xq + row * p.hidden + column, u);
}

template <bool kCluster>
void StartSeam(const MhcSeamSm90Params& p, cudaStream_t stream) {
  const auto threads = static_cast<unsigned>((p.hidden / 8 + 31) / 32 * 32);
  const unsigned blocks = kCluster ? (threads + kClusterThreads - 1) / kClusterThreads : 1;
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>(p.max_rows) * blocks);
  launch.block = dim3(kCluster ? kClusterThreads : threads);
  launch.cluster = dim3(blocks);
  launch.stream = stream;
  cuda::Start(launch, p.y_slots == 1 ? SeamKernel<false, kCluster> : SeamKernel<true, kCluster>, p,
              static_cast<int>(blocks));
}

}  // namespace

void MhcSeamSm90(const MhcSeamSm90Params& p, cudaStream_t stream) {
  if (p.max_rows == 0) return;
  SENKO_CHECK(p.hidden % 32 == 0 && p.hidden <= 8 * kMostThreads);
  SENKO_CHECK(p.y_slots >= 1 && p.y_slots <= kMhcMostSlots);
  if (p.max_rows <= kClusterRows) return StartSeam<true>(p, stream);
  StartSeam<false>(p, stream);
}

}  // namespace senko::ops
