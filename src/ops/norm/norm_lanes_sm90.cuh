// RMSNorm and rotation of a row that lies over the threads of some warps, eight neighbouring columns a thread.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "numerics/bf16_lanes.cuh"

namespace senko::ops::sm90 {

// Warps that a row of `cols` columns takes.
__host__ __device__ constexpr int WarpsOfRow(int64_t cols) { return static_cast<int>((cols + 255) / 256); }

// p is 16-byte aligned.
__device__ inline void LoadFloats(const float* p, float (&x)[8]) {
  const float4 low = reinterpret_cast<const float4*>(p)[0], high = reinterpret_cast<const float4*>(p)[1];
  x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
  x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

// The canonical order of a sum of squares: eight columns by fused multiply-adds from zero, the lanes of a warp in a
// butterfly from the far to the near, then (NormScale) the warps in order. All lanes of the warp call it.
__device__ inline float WarpSumOfSquares(const float (&x)[8]) {
  float sum = 0;
#pragma unroll
  for (const float v : x) sum = __fmaf_rn(v, v, sum);
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, lanes));
  return sum;
}

// The sums of a row's warps: [32], 16-byte aligned. One warp of the row zeroes what lies beyond them, once and before
// the barrier that comes between the sums and NormScale.
__device__ inline void ZeroBeyond(float* warp_sums, int warps, int lane) {
  if (lane >= warps) warp_sums[lane] = 0;
}

// 1 / sqrt(mean + eps), each step rounded to float32.
__device__ inline float NormScale(const float* warp_sums, int warps, int cols, float eps) {
  const float4 low = reinterpret_cast<const float4*>(warp_sums)[0],
               high = reinterpret_cast<const float4*>(warp_sums)[1];
  float total = __fadd_rn(__fadd_rn(__fadd_rn(low.x, low.y), low.z), low.w);
  total = __fadd_rn(__fadd_rn(__fadd_rn(__fadd_rn(total, high.x), high.y), high.z), high.w);
#pragma unroll 1
  for (int w = 8; w < warps; w += 4) {
    const float4 four = *reinterpret_cast<const float4*>(warp_sums + w);
    total = __fadd_rn(__fadd_rn(__fadd_rn(__fadd_rn(total, four.x), four.y), four.z), four.w);
  }
  return __frcp_rn(__fsqrt_rn(__fadd_rn(__fdiv_rn(total, static_cast<float>(cols)), eps)));
}

// Rows of bf16 have the model's rounding points, rows of float32 none.
__device__ inline void LoadRow8(const __nv_bfloat16* p, float (&x)[8]) { numerics::LoadBf16x8(p, x); }
__device__ inline void LoadRow8(const float* p, float (&x)[8]) { LoadFloats(p, x); }
__device__ inline void StoreRow8(__nv_bfloat16* p, const float (&x)[8]) { numerics::StoreBf16x8(p, x); }
__device__ inline void StoreRow8(float* p, const float (&x)[8]) {
  reinterpret_cast<float4*>(p)[0] = make_float4(x[0], x[1], x[2], x[3]);
  reinterpret_cast<float4*>(p)[1] = make_float4(x[4], x[5], x[6], x[7]);
}
template <typename Value>
__device__ inline void RoundRow8(float (&x)[8]) {
  if constexpr (sizeof(Value) == 2) numerics::RoundBf16x8(x);
}

// x becomes its norm, rounded once.
template <typename Value = __nv_bfloat16>
__device__ inline void Normalise(float (&x)[8], const float (&weight)[8], float scale) {
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = __fmul_rn(weight[i], __fmul_rn(x[i], scale));
  RoundRow8<Value>(x);
}

// The rotation of a thread's four pairs of columns, of which the first `skip` stay as they are.
__device__ inline int PairsToSkip(int column, int cols, int rope_dim) {
  return column < cols ? min(max(cols - rope_dim - column, 0) / 2, 4) : 4;
}

// Cosines and sines; of pairs that stay, nothing is read.
struct Turns {
  float2 of[4];

  // `of_column`: where those of the thread's first column lie, or would lie, in the row of the table.
  __device__ Turns(const float* of_column, int skip) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      of[i] = i < skip ? make_float2(0, 0) : *reinterpret_cast<const float2*>(of_column + 2 * i);
    }
  }
  // As RopeRotate (norm.h).
  template <typename Value = __nv_bfloat16>
  __device__ void Apply(float (&x)[8], int skip) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float a = x[2 * i], b = x[2 * i + 1];
      float real = __fsub_rn(__fmul_rn(a, of[i].x), __fmul_rn(b, of[i].y));
      float imaginary = __fadd_rn(__fmul_rn(a, of[i].y), __fmul_rn(b, of[i].x));
      if constexpr (sizeof(Value) == 2) {
        const uint32_t turned = numerics::PairToBf16(real, imaginary);
        real = __uint_as_float(turned << 16);
        imaginary = __uint_as_float(turned & 0xFFFF0000u);
      }
      x[2 * i] = i < skip ? a : real;
      x[2 * i + 1] = i < skip ? b : imaginary;
    }
  }
};

}  // namespace senko::ops::sm90
