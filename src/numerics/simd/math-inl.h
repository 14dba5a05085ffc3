// Functions of F32x16 for softmax and silu. Included once per target (no ordinary include guard).
#if defined(SENKO_NUMERICS_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SENKO_NUMERICS_SIMD_MATH_INL_H_
#undef SENKO_NUMERICS_SIMD_MATH_INL_H_
#else
#define SENKO_NUMERICS_SIMD_MATH_INL_H_
#endif

#include "numerics/simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace senko::numerics {
namespace HWY_NAMESPACE {

// e^x, within 2 ulp where the result is a normal float (without FMA 3 ulp), 0 below that (x < -87.3365) and infinity
// above 88.7228; NaN gives NaN. The same bits on AVX2 and AVX-512.
//
// x = n ln 2 + r with |r| <= ln 2 / 2, ln 2 in two parts so that n times the first is exact; e^r is r's Taylor
// polynomial of degree 7 (its truncation is below 2^-27 relative); 2^n goes into the exponent in two halves, so that
// results near the largest float do not overflow early.
HWY_INLINE F32x16 Exp(F32x16 x) {
  const NativeF32 d;
  const hn::RebindToSigned<NativeF32> di;
  F32x16 result;
  for (size_t i = 0; i < kParts; ++i) {
    const auto value = x.part[i];
    const auto low = hn::Set(d, -87.33654f), high = hn::Set(d, 88.72284f);
    const auto clamped = hn::Min(hn::Max(value, low), high);
    const auto n = hn::Round(hn::Mul(clamped, hn::Set(d, 1.44269504088896341f)));
    auto r = hn::NegMulAdd(n, hn::Set(d, 0.693145751953125f), clamped);
    r = hn::NegMulAdd(n, hn::Set(d, 1.42860682030941723212e-6f), r);
    auto p = hn::Set(d, 1.0f / 5040.0f);
    p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 720.0f));
    p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 120.0f));
    p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 24.0f));
    p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 6.0f));
    p = hn::MulAdd(p, r, hn::Set(d, 0.5f));
    p = hn::MulAdd(hn::Mul(p, r), r, r);
    p = hn::Add(p, hn::Set(d, 1.0f));
    const auto exponent = hn::ConvertTo(di, n);
    const auto half = hn::ShiftRight<1>(exponent);
    const auto bias = hn::Set(di, 127);
    const auto scale1 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, bias)));
    const auto scale2 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(exponent, half), bias)));
    p = hn::Mul(hn::Mul(p, scale1), scale2);
    p = hn::IfThenElse(hn::Lt(value, low), hn::Zero(d), p);
    p = hn::IfThenElse(hn::Gt(value, high), hn::Inf(d), p);
    result.part[i] = hn::IfThenElse(hn::IsNaN(value), value, p);
  }
  return result;
}

// x / (1 + e^-x); -0 far below zero, NaN for NaN.
HWY_INLINE F32x16 Silu(F32x16 x) {
  const F32x16 e = Exp(Sub(Zero16(), x));
  return Div(x, Add(Set16(1.0f), e));
}

}  // namespace HWY_NAMESPACE
}  // namespace senko::numerics
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
