// qdq_fp8_32 (quantise.h) where a block of 32 values lies in four neighbouring lanes, eight each, or a value a lane.
// All lanes of the warp call these.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "numerics/quantise.h"

namespace senko::numerics {

// FloatToE4m3 of two values, `low` in the low byte; a NaN becomes 0x7F whatever its sign.
__device__ inline uint32_t PairToE4m3(float low, float high) {
  uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
}
// E4m3ToFloat of both bytes but for which NaN: every e4m3 value is one of float16.
__device__ inline float2 E4m3PairToFloat(uint32_t codes) {
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(codes)));
  return __half22float2(*reinterpret_cast<const __half2*>(&halves));
}

// The bits of max|x| over the block, raised to `floor`. Magnitudes order as their bits do, NaN above infinity.
template <int kLanes>
__device__ inline uint32_t TopOverLanes(const float (&x)[8], float floor) {
  uint32_t top = FloatBits(floor);
#pragma unroll
  for (const float v : x) top = max(top, FloatBits(v) & 0x7FFFFFFFu);
#pragma unroll
  for (int lanes = 1; lanes < kLanes; lanes *= 2) top = max(top, __shfl_xor_sync(0xFFFFFFFFu, top, lanes));
  return top;
}

// The scale of a block whose `top` that is, and what multiplying by is dividing by it: a finite block's is from 2^-22
// to 2^120, so both round the same quotient once.
__device__ inline uint8_t Fp8ScaleCode(uint32_t top) {
  return Pow2CeilCode(MultiplyRn(FloatFromBits(top), kInverseE4m3Max));
}
__device__ inline float InverseOfScale(uint8_t code) { return FloatFromBits((254u - code) << 23); }

struct Fp8Lanes {
  uint2 codes;    // this lane's eight
  uint8_t scale;  // the block's
};

// QuantiseFp8, bit for bit.
__device__ inline Fp8Lanes QuantiseFp8OverLanes(const float (&x)[8]) {
  const uint32_t top = TopOverLanes<4>(x, kFp8Floor);
  Fp8Lanes out{make_uint2(0, 0), Fp8ScaleCode(top)};
  const float inverse = InverseOfScale(out.scale);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t pair = PairToE4m3(MultiplyRn(x[2 * i], inverse), MultiplyRn(x[2 * i + 1], inverse));
    (i < 2 ? out.codes.x : out.codes.y) |= pair << (16 * (i % 2));
  }
  if (!IsFinite(FloatFromBits(top))) out.codes = make_uint2(0x7F7F7F7Fu, 0x7F7F7F7Fu);
  return out;
}

// x becomes the value that its codes stand for, bit for bit but for which NaN.
__device__ inline void RoundFp8OverLanes(float (&x)[8]) {
  const Fp8Lanes packed = QuantiseFp8OverLanes(x);
  const float scale = FloatFromBits(uint32_t{packed.scale} << 23);  // infinity where poisoned; its codes are NaN
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = E4m3PairToFloat((i < 2 ? packed.codes.x : packed.codes.y) >> (16 * (i % 2)));
    x[2 * i] = MultiplyRn(two.x, scale);
    x[2 * i + 1] = MultiplyRn(two.y, scale);
  }
}

// The same of one block, a value a lane.
__device__ inline float RoundFp8OverWarp(float x) {
  const uint32_t top = __reduce_max_sync(0xFFFFFFFFu, max(FloatBits(x) & 0x7FFFFFFFu, FloatBits(kFp8Floor)));
  const uint8_t code = Fp8ScaleCode(top);
  const float value = E4m3PairToFloat(PairToE4m3(MultiplyRn(x, InverseOfScale(code)), 0.0f)).x;
  return IsFinite(FloatFromBits(top)) ? MultiplyRn(value, FloatFromBits(uint32_t{code} << 23))
                                      : FloatFromBits(0x7FC00000u);
}

}  // namespace senko::numerics
