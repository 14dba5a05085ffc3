// The seam and the coefficients without rounding points: a block a row.
#include <cuda_runtime.h>

#include "base/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "ops/mhc/mhc_sm90.h"

namespace senko::ops {
namespace {

using SeamParams = BasicMhcSeamSm90Params<float>;
using MixParams = BasicMhcMixSm90Params<float>;

constexpr int kMost = static_cast<int>(kMhcStreams);
constexpr int kThreads = 256;
constexpr int kParts = 3;  // bf16 rows of a float32 row of fn

// Of one value a thread, known to all: a butterfly over the warp, the warps in order.
__device__ float BlockSum(float value, float (&warp_sums)[kThreads / 32]) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) value = __fadd_rn(value, __shfl_xor_sync(0xFFFFFFFFu, value, lanes));
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (const float s : warp_sums) sum = __fadd_rn(sum, s);
  return sum;
}

// Shared: the collapsed row [hidden]. A sum over slots is from the first on.
__global__ __launch_bounds__(kThreads) void FloatSeamKernel(const SeamParams p) {
  extern __shared__ float collapsed[];
  __shared__ float warp_sums[kThreads / 32];
  cuda::WaitForPrevious();
  cuda::LetNextBegin();
  const int64_t row = blockIdx.x;
  if (row >= *p.rows) return;
  const int count = static_cast<int>(p.num_streams);
  float pre[kMost] = {}, post[kMost] = {}, comb[kMost][kMost] = {};
#pragma unroll
  for (int j = 0; j < kMost; ++j) {
    if (j >= count) break;
    pre[j] = p.pre[row * count + j];
    if (p.y == nullptr) continue;
    post[j] = p.post[row * count + j];
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      if (k < count) comb[j][k] = p.comb[(row * count + j) * count + k];
    }
  }
  float squares = 0;
  for (int64_t c = threadIdx.x; c < p.hidden; c += kThreads) {
    float* at = p.streams + row * count * p.hidden + c;
    float x[kMost] = {};
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      if (j < count) x[j] = at[j * p.hidden];
    }
    if (p.y != nullptr) {
      const float* slot = p.y + row * p.y_slots * p.hidden + c;
      float y = slot[0];
      for (int64_t s = 1; s < p.y_slots; ++s) y = __fadd_rn(y, slot[s * p.hidden]);
      float expanded[kMost] = {};
#pragma unroll
      for (int k = 0; k < kMost; ++k) {
        if (k >= count) break;
        expanded[k] = __fmul_rn(post[k], y);
#pragma unroll
        for (int j = 0; j < kMost; ++j) {
          if (j < count) expanded[k] = __fmaf_rn(comb[j][k], x[j], expanded[k]);
        }
        at[k * p.hidden] = expanded[k];
      }
#pragma unroll
      for (int k = 0; k < kMost; ++k) x[k] = expanded[k];
    }
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      if (j < count) sum = __fmaf_rn(pre[j], x[j], sum);
    }
    collapsed[c] = sum;
    squares = __fmaf_rn(sum, sum, squares);
  }
  squares = BlockSum(squares, warp_sums);
  const float mean = __fdiv_rn(squares, static_cast<float>(p.hidden));
  const float scale = __frcp_rn(__fsqrt_rn(__fadd_rn(mean, p.rms_eps)));
  for (int64_t c = threadIdx.x; c < p.hidden; c += kThreads) {  // each thread its own columns again
    p.x[row * p.hidden + c] = __fmul_rn(p.norm_weight[c], __fmul_rn(collapsed[c], scale));
  }
}

// p.scratch has the projections' parts, [rows, outputs, 3]. mix_coefficients.cc in the first warp.
__global__ __launch_bounds__(kThreads) void FloatFinishKernel(const MixParams p) {
  __shared__ float warp_sums[kThreads / 32];
  __shared__ float comb[kMost * kMost];
  cuda::WaitForPrevious();
  cuda::LetNextBegin();
  const int64_t row = blockIdx.x;
  if (row >= *p.rows) return;
  const int count = static_cast<int>(p.num_streams), outputs = (2 + count) * count;
  const int64_t width = count * p.hidden;
  float squares = 0;
  for (int64_t c = threadIdx.x; c < width; c += kThreads) {
    const float x = p.streams[row * width + c];
    squares = __fmaf_rn(x, x, squares);
  }
  squares = BlockSum(squares, warp_sums);
  const int lane = static_cast<int>(threadIdx.x);
  if (lane >= 32) return;
  const float rms = __frcp_rn(__fsqrt_rn(__fadd_rn(__fdiv_rn(squares, static_cast<float>(width)), p.rms_eps)));
  float z = 0;
  if (lane < outputs) {
    const float* part = p.scratch + (row * outputs + lane) * kParts;
    z = __fadd_rn(__fadd_rn(part[2], part[1]), part[0]);
    z = __fadd_rn(__fmul_rn(__fmul_rn(z, rms), p.scale[lane < count ? 0 : lane < 2 * count ? 1 : 2]), p.base[lane]);
  }
  if (lane < 2 * count) {
    const float sigmoid = __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-z)));
    if (lane < count) {
      p.pre[row * count + lane] = __fadd_rn(sigmoid, p.hc_eps);
    } else {
      p.post[row * count + lane - count] = __fmul_rn(2.0f, sigmoid);
    }
  }
  // comb[j][k] is lane 2 count + j count + k.
  const int at = lane - 2 * count;
  const bool in_comb = at >= 0 && lane < outputs;
  const int j = in_comb ? at / count : 0, k = in_comb ? at % count : 0;
  float c = z;
  const auto publish = [&] {
    __syncwarp();
    if (in_comb) comb[at] = c;
    __syncwarp();
  };
  const auto row_sum = [&] {
    publish();
    float sum = 0;
    for (int i = 0; i < count; ++i) sum = __fadd_rn(sum, comb[j * count + i]);
    return sum;
  };
  const auto column_sum = [&] {
    publish();
    float sum = 0;
    for (int i = 0; i < count; ++i) sum = __fadd_rn(sum, comb[i * count + k]);
    return sum;
  };
  publish();
  float top = comb[j * count];
  for (int i = 1; i < count; ++i) top = fmaxf(top, comb[j * count + i]);
  c = expf(__fsub_rn(c, top));
  c = __fadd_rn(__fdiv_rn(c, row_sum()), p.hc_eps);
  for (int iter = 0; iter < p.sinkhorn_iters; ++iter) {
    if (iter > 0) c = __fdiv_rn(c, __fadd_rn(row_sum(), p.hc_eps));
    c = __fdiv_rn(c, __fadd_rn(column_sum(), p.hc_eps));
  }
  if (in_comb) p.comb[row * count * count + at] = c;
}

}  // namespace

void MhcSeamSm90(const SeamParams& p, cudaStream_t stream) {
  if (p.max_rows == 0) return;
  SENKO_CHECK(p.num_streams >= 1 && p.num_streams <= kMost && (p.xq == nullptr || p.xq == p.x));
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>(p.max_rows));
  launch.block = dim3(kThreads);
  launch.shared_bytes = static_cast<size_t>(p.hidden) * sizeof(float);
  SENKO_CHECK(launch.shared_bytes <= 40 * 1024);
  launch.stream = stream;
  cuda::Start(launch, FloatSeamKernel, p);
}

void MhcMixSm90(const MixParams& p, cudaStream_t stream) {
  if (p.max_rows == 0) return;
  const int64_t outputs = (2 + p.num_streams) * p.num_streams;
  SENKO_CHECK(p.num_streams >= 1 && p.num_streams <= kMost);
  SENKO_CHECK(p.fn.out == kParts * outputs && p.fn.in == p.num_streams * p.hidden);
  LinearFloatSm90Params project;
  project.rows = p.rows;
  project.max_rows = p.max_rows;
  project.x = p.streams;
  project.x_stride = p.fn.in;
  project.weight = p.fn;
  project.y = p.scratch;
  project.y_stride = p.fn.out;
  LinearFloatSm90(project, stream);
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>(p.max_rows));
  launch.block = dim3(kThreads);
  launch.stream = stream;
  cuda::Start(launch, FloatFinishKernel, p);
}

}  // namespace senko::ops
