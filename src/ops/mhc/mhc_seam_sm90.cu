// One block a row: every thread keeps its eight columns of all four streams in registers from expand to the rounded
// activations.
#include <cuda_runtime.h>

#include "base/check.h"
#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "numerics/fp8_lanes.cuh"
#include "ops/mhc/mhc_sm90.h"

namespace senko::ops {
namespace {

constexpr int kStreams = static_cast<int>(kMhcStreams);
constexpr int kMostThreads = 640;

struct Eight {
  uint4 codes;
  __device__ float operator[](int i) const {
    const uint32_t word = (&codes.x)[i / 2];
    return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xFFFF0000u);
  }
};

__device__ Eight Load(const __nv_bfloat16* p) { return {*reinterpret_cast<const uint4*>(p)}; }
__device__ void Store(__nv_bfloat16* p, const float (&v)[8]) {
  uint4 codes;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
    (&codes.x)[i] = *reinterpret_cast<const uint32_t*>(&two);
  }
  *reinterpret_cast<uint4*>(p) = codes;
}

// y of the row at these columns.
template <bool kSlots>
__device__ void LoadY(const MhcSeamSm90Params& p, int64_t row, int column, float (&y)[8]) {
  if constexpr (!kSlots) {
    const Eight codes = Load(p.y + row * p.hidden + column);
#pragma unroll
    for (int i = 0; i < 8; ++i) y[i] = codes[i];
  } else {
    constexpr int kMost = static_cast<int>(kMhcMostSlots);
    const __nv_bfloat16* at = p.y + row * p.y_slots * p.hidden + column;
    Eight codes[kMost];  // all on the way at once
#pragma unroll
    for (int s = 0; s < kMost; ++s) {
      if (s < p.y_slots) codes[s] = Load(at + s * p.hidden);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) y[i] = codes[0][i];
#pragma unroll
    for (int s = 1; s < kMost; ++s) {
      if (s >= p.y_slots) break;
#pragma unroll
      for (int i = 0; i < 8; ++i) y[i] = __fadd_rn(y[i], codes[s][i]);
    }
#pragma unroll
    for (float& v : y) v = __bfloat162float(__float2bfloat16_rn(v));
  }
}

template <bool kSlots>
__global__ __launch_bounds__(kMostThreads) void SeamKernel(const MhcSeamSm90Params p) {
  __shared__ float warp_sums[32];
  const int column = static_cast<int>(threadIdx.x) * 8;
  const bool works = column < p.hidden;
  cuda::WaitForPrevious();
  const int64_t row = blockIdx.x;
  if (row >= *p.rows) return;
  __nv_bfloat16* streams = p.streams + row * kStreams * p.hidden + column;
  float u[8] = {};
  if (works) {
    float x[kStreams][8];
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      const Eight codes = Load(streams + j * p.hidden);
#pragma unroll
      for (int i = 0; i < 8; ++i) x[j][i] = codes[i];
    }
    if (p.y != nullptr) {
      float y[8];
      LoadY<kSlots>(p, row, column, y);
      float out[kStreams][8];
#pragma unroll
      for (int k = 0; k < kStreams; ++k) {
        const float post = p.post[row * kStreams + k];
#pragma unroll
        for (int i = 0; i < 8; ++i) out[k][i] = __fmul_rn(post, y[i]);
      }
#pragma unroll
      for (int j = 0; j < kStreams; ++j) {
        const float4 comb = reinterpret_cast<const float4*>(p.comb)[row * kStreams + j];
#pragma unroll
        for (int k = 0; k < kStreams; ++k) {
#pragma unroll
          for (int i = 0; i < 8; ++i) out[k][i] = __fmaf_rn((&comb.x)[k], x[j][i], out[k][i]);
        }
      }
#pragma unroll
      for (int k = 0; k < kStreams; ++k) {
#pragma unroll
        for (int i = 0; i < 8; ++i) x[k][i] = __bfloat162float(__float2bfloat16_rn(out[k][i]));
        Store(streams + k * p.hidden, x[k]);
      }
    }
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      const float pre = p.pre[row * kStreams + j];
#pragma unroll
      for (int i = 0; i < 8; ++i) u[i] = __fmaf_rn(pre, x[j][i], u[i]);
    }
#pragma unroll
    for (float& v : u) v = __bfloat162float(__float2bfloat16_rn(v));
  }
  cuda::LetNextBegin();

  float sum = 0;
#pragma unroll
  for (float v : u) sum = __fmaf_rn(v, v, sum);
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, lanes));
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  float total = 0;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) total = __fadd_rn(total, warp_sums[w]);
  const auto scale = static_cast<float>(1.0 / sqrt(double{total} / static_cast<double>(p.hidden) + double{p.rms_eps}));
  float x[8] = {};
  if (works) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      x[i] = __bfloat162float(__float2bfloat16_rn(__fmul_rn(p.norm_weight[column + i], __fmul_rn(u[i], scale))));
    }
    Store(p.x + row * p.hidden + column, x);
  }
  if (p.xq == nullptr) return;
  numerics::RoundFp8OverLanes(x);
  if (works) Store(p.xq + row * p.hidden + column, x);
}

}  // namespace

void MhcSeamSm90(const MhcSeamSm90Params& p, cudaStream_t stream) {
  if (p.max_rows == 0) return;
  SENKO_CHECK(p.hidden % 32 == 0 && p.hidden <= 8 * kMostThreads);
  SENKO_CHECK(p.y_slots >= 1 && p.y_slots <= kMhcMostSlots);
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>(p.max_rows));
  launch.block = dim3(static_cast<unsigned>((p.hidden / 8 + 31) / 32 * 32));
  launch.stream = stream;
  cuda::Start(launch, p.y_slots == 1 ? SeamKernel<false> : SeamKernel<true>, p);
}

}  // namespace senko::ops
