// qdq_fp4_32 and qdq_fp4_16 (quantise.h) where a block lies in neighbouring lanes, eight values each. All lanes of the
// warp call these.
#pragma once

#include <cuda_runtime.h>

#include "numerics/fp8_lanes.cuh"

namespace senko::numerics {

// FloatToE2m1 without its sign, by two roundings of which one holds.
__device__ inline uint32_t E2m1Magnitude(float x) {
  const float a = fminf(fabsf(x), kE2m1Max);  // of a NaN 6, whose code it has
  // Below 1 the steps are of 1/2, as those of floats about 2^22: the sum's low bits are the code.
  const uint32_t small = FloatBits(__fadd_rn(a, 0x1p22f)) - FloatBits(0x1p22f);
  // From 1 on a code is the exponent and one bit of mantissa.
  const uint32_t bits = FloatBits(a);
  const uint32_t large = ((bits + 0x1FFFFFu + ((bits >> 22) & 1u)) >> 22) - 252u;
  return a < 1.0f ? small : large;
}
__device__ inline uint32_t E2m1Code(float x) { return E2m1Magnitude(x) | ((FloatBits(x) >> 28) & 8u); }

struct Fp4Lanes {
  uint32_t codes;  // this lane's eight, the first in the lowest nibble
  uint8_t scale;   // the block's
};

// QuantiseFp4, bit for bit: a block in four lanes.
__device__ inline Fp4Lanes QuantiseFp4OverLanes(const float (&x)[8]) {
  const float a = FloatFromBits(TopOverLanes<4>(x, kFp4Floor));
  const uint8_t code = Pow2CeilCode(MultiplyRn(a, kInverseE2m1Max));
  // A finite block's scale is from 2^-126 to 2^126: dividing by it is multiplying, with the same one rounding.
  const float inverse = InverseOfScale(code);
  uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) codes |= E2m1Code(MultiplyRn(x[i], inverse)) << (4 * i);
  return {IsFinite(a) ? codes : kE2m1Poison * 0x01010101u, code};
}

// QuantiseFp4Block16, bit for bit: a block in two lanes.
__device__ inline Fp4Lanes QuantiseFp4Block16OverLanes(const float (&x)[8]) {
  const float a = FloatFromBits(TopOverLanes<2>(x, kFp4Block16Floor));
  const bool finite = IsFinite(a);
  const uint32_t code = finite ? PairToE4m3(DivideRn(a, 6.0f), 0.0f) : uint32_t{kE4m3Nan};
  const float scale = E4m3PairToFloat(code).x;
  uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) codes |= E2m1Code(DivideRn(x[i], scale)) << (4 * i);
  return {finite ? codes : kE2m1Poison * 0x01010101u, static_cast<uint8_t>(code)};
}

}  // namespace senko::numerics
