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

// The model's rounding points, where rows are bf16.
template <typename Value>
__device__ float Round(float x) {
  return sizeof(Value) == 2 ? numerics::RoundToBf16(x) : x;
}

// One channel of a packed key.
__device__ float Channel(const AttentionRowsSm90& p, const sm90::RowKeys& keys, int k, int channel) {
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
template <typename Value>
__global__ __launch_bounds__(kThreads, 4) void PlainKernel(const BasicAttentionSm90Params<Value> p) {
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
  const Value* from = p.q + (row * p.heads + head) * p.dim;
  const float* rope = p.rope + row * p.rope_dim;
  for (int c = thread * 2; c < dim; c += kThreads * 2) {
    float a = static_cast<float>(from[c]), b = static_cast<float>(from[c + 1]);
    if (c >= tail) {
      const float cosine = rope[c - tail], sine = rope[c - tail + 1];
      const float real = __fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine));
      b = Round<Value>(__fadd_rn(__fmul_rn(a, sine), __fmul_rn(b, cosine)));
      a = Round<Value>(real);
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
      const float weight = Round<Value>(weights[k]);
      a = __fmaf_rn(weight, Channel(p, keys, k, c), a);
      b = __fmaf_rn(weight, Channel(p, keys, k, c + 1), b);
    }
    a = Round<Value>(__fdiv_rn(a, denominator));
    b = Round<Value>(__fdiv_rn(b, denominator));
    if (c >= tail) {
      const float cosine = rope[c - tail], sine = -rope[c - tail + 1];
      const float real = __fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine));
      b = __fadd_rn(__fmul_rn(a, sine), __fmul_rn(b, cosine));
      a = real;
    }
    Value* to = p.out + (row * p.heads + head) * p.dim + c;
    to[0] = static_cast<Value>(a), to[1] = static_cast<Value>(b);
  }
}

template <typename Value>
void StartPlain(const BasicAttentionSm90Params<Value>& p, cudaStream_t stream) {
  if (p.max_rows == 0) return;
  SENKO_CHECK(p.dim % 32 == 0 && p.rope_dim % 2 == 0);
  const auto keys = p.max_window + (p.selected != nullptr ? p.selected_stride : 0);
  const auto shared = static_cast<size_t>(p.dim + keys) * sizeof(float);
  SENKO_CHECK(shared <= 48 * 1024);
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>(p.max_rows), static_cast<unsigned>(p.heads));
  launch.block = dim3(kThreads);
  launch.shared_bytes = shared;
  launch.stream = stream;
  cuda::Start(launch, PlainKernel<Value>, p);
}

}  // namespace

void AttentionPlainSm90(const AttentionSm90Params& p, cudaStream_t stream) { StartPlain(p, stream); }
void AttentionSm90(const BasicAttentionSm90Params<float>& p, cudaStream_t stream) { StartPlain(p, stream); }

}  // namespace senko::ops
