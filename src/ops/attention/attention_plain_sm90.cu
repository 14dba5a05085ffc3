#include <cuda_runtime.h>

#include "base/check.h"
#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/ue8m0.h"
#include "ops/attention/attention_keys_sm90.cuh"
#include "ops/attention/attention_plain_sm90.h"

namespace senko::ops {
namespace {

constexpr int kThreads = 128;

// One channel of a packed key.
__device__ float Channel(const AttentionSm90Params& p, const sm90::RowKeys& keys, int k, int channel) {
  if (k < keys.num_window) {
    const uint8_t* row = keys.WindowKey(p, k);
    return __fmul_rn(numerics::E4m3ToFloat(row[channel]), numerics::Ue8m0ToFloat(row[p.dim + channel / 32]));
  }
  const uint8_t* row = keys.EntryKey(p, k - keys.num_window);
  const uint8_t pair = row[channel / 2];
  return __fmul_rn(numerics::E2m1ToFloat(channel % 2 == 0 ? pair & 15 : pair >> 4),
                   numerics::E4m3ToFloat(row[p.dim / 2 + channel / 16]));
}

// Shared: queries [dim], then a weight for every key.
__global__ __launch_bounds__(kThreads) void PlainKernel(const AttentionSm90Params p) {
  extern __shared__ float values[];
  __shared__ float parts[kThreads / 32];
  cuda::WaitForPrevious();
  const int64_t row = blockIdx.x;
  if (row >= *p.num_rows) return;
  const int head = static_cast<int>(blockIdx.y), dim = static_cast<int>(p.dim), thread = static_cast<int>(threadIdx.x);
  const int tail = dim - static_cast<int>(p.rope_dim);
  const sm90::RowKeys keys(p, row);
  const int num_keys = keys.num_window + keys.num_selected;
  float *q = values, *weights = values + dim;
  const __nv_bfloat16* from = p.q + (row * p.heads + head) * p.dim;
  const float* rope = p.rope + row * p.rope_dim;
  for (int c = thread * 2; c < dim; c += kThreads * 2) {
    float a = __bfloat162float(from[c]), b = __bfloat162float(from[c + 1]);
    if (c >= tail) {
      const float cosine = rope[c - tail], sine = rope[c - tail + 1];
      const float real = __fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine));
      b = numerics::RoundToBf16(__fadd_rn(__fmul_rn(a, sine), __fmul_rn(b, cosine)));
      a = numerics::RoundToBf16(real);
    }
    q[c] = a, q[c + 1] = b;
  }
  __syncthreads();
  float top = -INFINITY;
  for (int k = thread; k < num_keys; k += kThreads) {
    float dot = 0;
    for (int c = 0; c < dim; ++c) dot = __fmaf_rn(q[c], Channel(p, keys, k, c), dot);
    weights[k] = __fmul_rn(dot, p.scale);
    top = fmaxf(top, weights[k]);
  }
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, lanes));
  if (thread % 32 == 0) parts[thread / 32] = top;
  __syncthreads();
  for (const float part : parts) top = fmaxf(top, part);
  for (int k = thread; k < num_keys; k += kThreads) weights[k] = expf(weights[k] - top);
  __syncthreads();
  float denominator = expf(p.sink[head] - top);
  for (int k = 0; k < num_keys; ++k) denominator = __fadd_rn(denominator, weights[k]);
  cuda::LetNextBegin();
  for (int c = thread * 2; c < dim; c += kThreads * 2) {
    float a = 0, b = 0;
    for (int k = 0; k < num_keys; ++k) {
      const float weight = numerics::RoundToBf16(weights[k]);
      a = __fmaf_rn(weight, Channel(p, keys, k, c), a);
      b = __fmaf_rn(weight, Channel(p, keys, k, c + 1), b);
    }
    a = numerics::RoundToBf16(__fdiv_rn(a, denominator));
    b = numerics::RoundToBf16(__fdiv_rn(b, denominator));
    if (c >= tail) {
      const float cosine = rope[c - tail], sine = -rope[c - tail + 1];
      const float real = __fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine));
      b = __fadd_rn(__fmul_rn(a, sine), __fmul_rn(b, cosine));
      a = real;
    }
    *reinterpret_cast<__nv_bfloat162*>(p.out + (row * p.heads + head) * p.dim + c) = __floats2bfloat162_rn(a, b);
  }
}

}  // namespace

void AttentionPlainSm90(const AttentionSm90Params& p, cudaStream_t stream) {
  SENKO_CHECK(p.dim % 32 == 0 && p.rope_dim % 2 == 0);
  const auto keys = p.max_window + (p.selected != nullptr ? p.selected_stride : 0);
  const auto shared = static_cast<size_t>(p.dim + keys) * sizeof(float);
  SENKO_CHECK(shared <= 48 * 1024);
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>(p.max_rows), static_cast<unsigned>(p.heads));
  launch.block = dim3(kThreads);
  launch.shared_bytes = shared;
  launch.stream = stream;
  cuda::Start(launch, PlainKernel, p);
}

}  // namespace senko::ops
