// Activation rounding where a block of 32 values lies in the lanes of a warp.
#pragma once

#include <cuda_runtime.h>

#include "numerics/quantise.h"

namespace senko::numerics {

// Values of a block whose largest magnitude has the bits `top`.
template <int kValues>
__device__ inline void RoundFp8Values(uint32_t top, float (&x)[kValues]) {
  const float a = FloatFromBits(top);
  const uint8_t code = Pow2CeilCode(MultiplyRn(RaiseToFloor(a, kFp8Floor), kInverseE4m3Max));
  const float scale = Ue8m0ToFloat(code);
  // A scale is at least 2^-23 and, for finite values of bf16, below 2^120: dividing by it is multiplying, exactly.
  const float inverse = FloatFromBits((254u - code) << 23);
#pragma unroll
  for (float& v : x) {
    const float clamped = Clamp(MultiplyRn(v, inverse), kE4m3Max);
    v = IsFinite(a) ? MultiplyRn(E4m3ToFloat(FloatToE4m3(clamped)), scale) : FloatFromBits(0x7FC00000u);
  }
}

// qdq_fp8_32 (quantise.h), bit for bit but for which NaN, of blocks in four neighbouring lanes, eight values each. All
// lanes of the warp call it.
__device__ inline void RoundFp8OverLanes(float (&x)[8]) {
  uint32_t top = 0;
#pragma unroll
  for (float v : x) top = max(top, FloatBits(v) & 0x7FFFFFFFu);
  top = max(top, __shfl_xor_sync(0xFFFFFFFFu, top, 1));
  top = max(top, __shfl_xor_sync(0xFFFFFFFFu, top, 2));
  RoundFp8Values(top, x);
}

// The same of one block, a value a lane.
__device__ inline float RoundFp8OverWarp(float x) {
  float one[1] = {x};
  RoundFp8Values(__reduce_max_sync(0xFFFFFFFFu, FloatBits(x) & 0x7FFFFFFFu), one);
  return one[0];
}

}  // namespace senko::numerics
