// draw_scheme.h's weight with fewer operations.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/sample/draw_scheme.h"

namespace senko::ops::sm90 {

// HeavyWeight's bits, for exponents of kLightest to 0, with a polynomial of fused multiply-adds: 24 operations for 35.
// False where it has to be computed as defined.
//
// Everything before the polynomial is as defined: n * kLn2High is exact, so fused is the same. A step of the polynomial
// rounds once instead of twice: the sums stay below 2 and the products below 1/2, which makes the two apart by at most
// 2.25 * 2^-53 a step; |r| < 0.35 damps what earlier steps did, so the polynomials end less than 4 * 2^-53 apart,
// within 2^-50 of a value above 0.7. Times a power of two both are exact. So where the weight is further than 2^-50 of
// itself from the middle of two integers, both round to the same. Only heavy tokens ever are nearer: one in 32 at the
// top, one in 2^20 at a weight of 2^29.
__device__ inline bool FusedWeight(double exponent, uint64_t* fused) {
  constexpr exp_scheme::Coefficients taylor = exp_scheme::kTaylor;
  const double shifted = __dadd_rn(__dmul_rn(exponent, exp_scheme::kLog2E), exp_scheme::kRound);
  const double n = __dsub_rn(shifted, exp_scheme::kRound);
  const double high = __fma_rn(-n, exp_scheme::kLn2High, exponent);
  const double r = __dsub_rn(high, __dmul_rn(n, exp_scheme::kLn2Low));
  double p = taylor.of[0];
#pragma unroll
  for (int i = 1; i < 14; ++i) p = __fma_rn(p, r, taylor.of[i]);
  const auto low = static_cast<uint64_t>(__double_as_longlong(shifted));
  const double scale = __longlong_as_double(static_cast<int64_t>((low + 1023 + kWeightBits) << 52));
  const double rounded = __fma_rn(p, scale, exp_scheme::kToInteger);
  const double weight = __dsub_rn(rounded, exp_scheme::kToInteger);
  const double rest = __fma_rn(p, scale, -weight);  // exact
  *fused = static_cast<uint64_t>(__double_as_longlong(rounded)) & ((uint64_t{1} << 52) - 1);
  return __fma_rn(weight, 0x1p-50, fabs(rest)) <= 0.5 - 0x1p-49;
}

// Out of line, for registers.
static __device__ __noinline__ uint64_t DefinedWeight(double exponent) { return HeavyWeight(exponent); }

// HeavyWeight of several exponents, whose arithmetic overlaps.
template <int kCount>
__device__ void HeavyWeights(const double (&exponent)[kCount], uint64_t (&w)[kCount]) {
  bool fused[kCount];
#pragma unroll
  for (int j = 0; j < kCount; ++j) fused[j] = FusedWeight(exponent[j], &w[j]);
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    if (!fused[j]) w[j] = DefinedWeight(exponent[j]);
  }
}
}  // namespace senko::ops::sm90
