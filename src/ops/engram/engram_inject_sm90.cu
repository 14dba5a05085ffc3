// A block takes one stream of some rows, eight columns a thread: the stream, its key and the value stay in registers
// from the sums to the update. Bound by memory: 26 bytes a column of a row, the value from the L2 cache for three of
// the four streams, whose blocks run side by side.
#include <cuda_runtime.h>

#include <algorithm>

#include "base/check.h"
#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "ops/engram/engram_sm90.h"
#include "ops/norm/norm_lanes_sm90.cuh"

namespace senko::ops {
namespace {

constexpr int kStreams = 4;  // of bf16
constexpr int kMostThreads = 640;
constexpr int64_t kMostBlocks = 2 * 132;  // as many as run at once

template <typename Value>
struct Eight;
template <>
struct Eight<__nv_bfloat16> {
  uint4 codes = {};
  __device__ void Load(const __nv_bfloat16* p) { codes = *reinterpret_cast<const uint4*>(p); }
  __device__ float operator[](int i) const {
    const uint32_t word = (&codes.x)[i / 2];
    return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xFFFF0000u);
  }
};
template <>
struct Eight<float> {
  float values[8] = {};
  __device__ void Load(const float* p) { sm90::LoadFloats(p, values); }
  __device__ float operator[](int i) const { return values[i]; }
};

// The operations of the CPU's InjectRow.
__device__ float Gate(float product, float x_squares, float key_squares, float width, float eps) {
  const float x_rms = 1.0f / sqrtf(x_squares / width + eps), key_rms = 1.0f / sqrtf(key_squares / width + eps);
  // Each rms takes its factor alone: their product overflows float32 when both rows are all but zero.
  const float dot = product * x_rms * key_rms * (1.0f / sqrtf(width));
  const float magnitude = fabsf(dot) > 1e-6f || isnan(dot) ? fabsf(dot) : 1e-6f;
  return 1.0f / (1.0f + expf(-copysignf(sqrtf(magnitude), dot)));
}

template <typename Value>
__global__ __launch_bounds__(kMostThreads,
                             sizeof(Value) == 2 ? 2 : 1) void InjectKernel(const BasicEngramInjectSm90Params<Value> p) {
  __shared__ float warp_sums[2][3][32];
  const int stream = static_cast<int>(blockIdx.x);
  const int column = static_cast<int>(threadIdx.x) * 8, warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const bool works = column < p.hidden;
  float weight[8] = {};  // weights do not depend on the kernel ahead
  if (works) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 q = *reinterpret_cast<const float4*>(p.q_weight + stream * p.hidden + column + 4 * i);
      const float4 k = *reinterpret_cast<const float4*>(p.k_weight + stream * p.hidden + column + 4 * i);
#pragma unroll
      for (int j = 0; j < 4; ++j) weight[4 * i + j] = __fmul_rn((&q.x)[j], (&k.x)[j]);
    }
  }
  cuda::WaitForPrevious();
  cuda::LetNextBegin();
  const int64_t rows = *p.rows;
  int parity = 0;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    if (p.is_image != nullptr && p.is_image[row] != 0) continue;
    const int64_t streams = sizeof(Value) == 2 ? kStreams : static_cast<int64_t>(gridDim.x);
    const Value* kv = p.kv + row * (streams + 1) * p.hidden + column;
    Value* at = p.streams + (row * streams + stream) * p.hidden + column;
    Eight<Value> x, key, value;
    if (works) x.Load(at), key.Load(kv + stream * p.hidden), value.Load(kv + streams * p.hidden);
    float sums[3] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      sums[0] = __fmaf_rn(__fmul_rn(x[i], weight[i]), key[i], sums[0]);
      sums[1] = __fmaf_rn(x[i], x[i], sums[1]);
      sums[2] = __fmaf_rn(key[i], key[i], sums[2]);
    }
#pragma unroll
    for (float& sum : sums) {
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, lanes));
    }
    if (threadIdx.x % 32 == 0) {
#pragma unroll
      for (int i = 0; i < 3; ++i) warp_sums[parity][i][warp] = sums[i];
    }
    __syncthreads();  // the sums of the row before may still be read: they lie in the other half
    float totals[3] = {};
    for (int w = 0; w < warps; ++w) {
#pragma unroll
      for (int i = 0; i < 3; ++i) totals[i] = __fadd_rn(totals[i], warp_sums[parity][i][w]);
    }
    parity ^= 1;
    const float gate = Gate(totals[0], totals[1], totals[2], static_cast<float>(p.hidden), p.rms_eps);
    if (!works) continue;
    if constexpr (sizeof(Value) == 2) {
      uint4 codes;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(__fmaf_rn(gate, value[2 * i], x[2 * i]),
                                                         __fmaf_rn(gate, value[2 * i + 1], x[2 * i + 1]));
        (&codes.x)[i] = *reinterpret_cast<const uint32_t*>(&two);
      }
      *reinterpret_cast<uint4*>(at) = codes;
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) at[i] = __fmaf_rn(gate, value[i], x[i]);
    }
  }
}

template <typename Value>
void StartInject(const BasicEngramInjectSm90Params<Value>& p, cudaStream_t stream) {
  if (p.max_rows == 0) return;
  SENKO_CHECK(p.hidden % 32 == 0 && p.hidden <= 8 * kMostThreads);
  SENKO_CHECK(sizeof(Value) == 2 ? p.num_streams == kStreams : p.num_streams >= 1);
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>(p.num_streams),
                     static_cast<unsigned>(std::min(p.max_rows, kMostBlocks / p.num_streams)));
  launch.block = dim3(static_cast<unsigned>((p.hidden / 8 + 31) / 32 * 32));
  launch.stream = stream;
  cuda::Start(launch, InjectKernel<Value>, p);
}

}  // namespace

void EngramInjectSm90(const EngramInjectSm90Params& p, cudaStream_t stream) { StartInject(p, stream); }
void EngramInjectSm90(const BasicEngramInjectSm90Params<float>& p, cudaStream_t stream) { StartInject(p, stream); }

}  // namespace senko::ops
