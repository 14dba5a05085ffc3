// The block quantisers over rows (row_quantise.h).
//
// Where quantise.h divides by a power of two, this multiplies by its inverse: both are the exact product
// rounded once, and the scales' inverses 2^-127..2^126 are float32 values. e4m3 scales are divided by, as the
// model has it.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "numerics/row_quantise.cc"
#include <hwy/foreach_target.h>
// after foreach_target.h, as Highway wants it
#include <hwy/highway.h>

#include <cstring>

#include "base/check.h"
#include "numerics/bf16.h"
#include "numerics/quantise.h"
#include "numerics/row_quantise.h"

HWY_BEFORE_NAMESPACE();
namespace senko::numerics::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, 16>;  // 16 divides every block
using BitsTag = hn::RebindToUnsigned<FloatTag>;
using IntTag = hn::RebindToSigned<FloatTag>;
using ByteTag = hn::Rebind<uint8_t, FloatTag>;
using Floats = hn::Vec<FloatTag>;
using Bits = hn::Vec<BitsTag>;
constexpr FloatTag kFloats;
constexpr BitsTag kBits;

HWY_INLINE Bits SetBits(uint32_t value) { return hn::Set(kBits, value); }
HWY_INLINE Bits Magnitude(Floats x) { return hn::And(hn::BitCast(kBits, x), SetBits(0x7FFFFFFFu)); }
HWY_INLINE Bits SignOf(Floats x) { return hn::And(hn::BitCast(kBits, x), SetBits(0x80000000u)); }
HWY_INLINE int64_t Lanes() { return static_cast<int64_t>(hn::Lanes(kFloats)); }

// Rounds bits to `kDropped` fewer mantissa bits, to nearest even; the dropped bits are left as they fall.
template <int kDropped>
HWY_INLINE Bits RoundMantissa(Bits magnitude) {
  const Bits odd = hn::And(hn::ShiftRight<kDropped>(magnitude), SetBits(1u));
  return hn::Add(hn::Add(magnitude, SetBits((1u << (kDropped - 1)) - 1u)), odd);
}

// max |x| of a block; NaN if any value is NaN.
template <int kBlock>
HWY_INLINE float BlockAbsMax(const float* x) {
  Bits top = hn::Zero(kBits);
  for (int64_t i = 0; i < kBlock; i += Lanes()) top = hn::Max(top, Magnitude(hn::LoadU(kFloats, x + i)));
  return FloatFromBits(hn::GetLane(hn::MaxOfLanes(kBits, top)));
}

// 1 / 2^(code - 127) for 1 <= code <= 253, which is all that a finite block makes.
HWY_INLINE float InverseScale(uint8_t code) { return FloatFromBits((254u - code) << 23); }

// e4m3 codes of finite x, one a lane.
HWY_INLINE Bits E4m3Codes(Floats x) {
  const Bits magnitude = hn::Min(Magnitude(x), SetBits(0x43E00000u));  // 448
  // Below 2^-6, adding 2^14 leaves the multiple of 2^-9 in the low mantissa bits.
  const Floats shifted = hn::Add(hn::BitCast(kFloats, magnitude), hn::Set(kFloats, 16384.0f));
  const Bits subnormal = hn::Sub(hn::BitCast(kBits, shifted), SetBits(0x46800000u));
  const Bits normal = hn::ShiftRight<20>(hn::Sub(RoundMantissa<20>(magnitude), SetBits(120u << 23)));
  const Bits code = hn::IfThenElse(hn::Lt(magnitude, SetBits(0x3C800000u)), subnormal, normal);
  return hn::Or(code, hn::ShiftRight<24>(SignOf(x)));
}

// e2m1 codes of finite x, one a lane. The same way: below 1 the steps are of 0.5, the ulp at 2^22.
HWY_INLINE Bits E2m1Codes(Floats x) {
  const Bits magnitude = hn::Min(Magnitude(x), SetBits(0x40C00000u));  // 6
  const Floats shifted = hn::Add(hn::BitCast(kFloats, magnitude), hn::Set(kFloats, 4194304.0f));
  const Bits subnormal = hn::Sub(hn::BitCast(kBits, shifted), SetBits(0x4A800000u));
  const Bits normal = hn::ShiftRight<22>(hn::Sub(RoundMantissa<22>(magnitude), SetBits(126u << 23)));
  const Bits code = hn::IfThenElse(hn::Lt(magnitude, SetBits(0x3F800000u)), subnormal, normal);
  return hn::Or(code, hn::ShiftRight<28>(SignOf(x)));
}

HWY_INLINE Floats E4m3Values(Bits codes) {
  const Bits magnitude = hn::And(codes, SetBits(0x7Fu));
  const Bits sign = hn::ShiftLeft<24>(hn::And(codes, SetBits(0x80u)));
  const Bits normal = hn::Add(hn::ShiftLeft<20>(magnitude), SetBits(120u << 23));
  const Floats steps = hn::ConvertTo(kFloats, hn::BitCast(IntTag(), magnitude));
  const Bits subnormal = hn::BitCast(kBits, hn::Mul(steps, hn::Set(kFloats, 0x1p-9f)));
  Bits value = hn::IfThenElse(hn::Lt(magnitude, SetBits(8u)), subnormal, normal);
  value = hn::IfThenElse(hn::Eq(magnitude, SetBits(0x7Fu)), SetBits(0x7FC00000u), value);
  return hn::BitCast(kFloats, hn::Or(value, sign));
}

HWY_INLINE Floats E2m1Values(Bits codes) {
  const Bits magnitude = hn::And(codes, SetBits(0x7u));
  const Bits sign = hn::ShiftLeft<28>(hn::And(codes, SetBits(0x8u)));
  const Bits normal = hn::Add(hn::ShiftLeft<22>(magnitude), SetBits(126u << 23));
  const Bits half = hn::And(hn::Sub(hn::Zero(kBits), magnitude), SetBits(0x3F000000u));  // 0 -> 0, 1 -> 0.5
  return hn::BitCast(kFloats, hn::Or(hn::IfThenElse(hn::Lt(magnitude, SetBits(2u)), half, normal), sign));
}

HWY_INLINE void StoreBytes(Bits codes, uint8_t* out) {
  hn::StoreU(hn::DemoteTo(ByteTag(), hn::BitCast(IntTag(), codes)), ByteTag(), out);
}
HWY_INLINE Bits LoadBytes(const uint8_t* codes) { return hn::PromoteTo(kBits, hn::LoadU(ByteTag(), codes)); }

template <int kBlock>
HWY_INLINE void PackNibbles(const uint8_t* HWY_RESTRICT codes, uint8_t* HWY_RESTRICT packed) {
  for (int i = 0; i < kBlock / 2; ++i) packed[i] = static_cast<uint8_t>(codes[2 * i] | (codes[2 * i + 1] << 4));
}
template <int kBlock>
HWY_INLINE void UnpackNibbles(const uint8_t* HWY_RESTRICT packed, uint8_t* HWY_RESTRICT codes) {
  for (int i = 0; i < kBlock / 2; ++i) {
    codes[2 * i] = static_cast<uint8_t>(packed[i] & 0xF);
    codes[2 * i + 1] = static_cast<uint8_t>(packed[i] >> 4);
  }
}

template <int kBlock>
HWY_INLINE void DequantiseFp4BlockOf(const uint8_t* packed, float scale, float* x) {
  HWY_ALIGN uint8_t codes[kBlock];
  UnpackNibbles<kBlock>(packed, codes);
  const Floats s = hn::Set(kFloats, scale);
  for (int64_t i = 0; i < kBlock; i += Lanes()) {
    hn::StoreU(hn::Mul(E2m1Values(LoadBytes(codes + i)), s), kFloats, x + i);
  }
}

void QuantiseFp8Impl(const float* x, int64_t n, uint8_t* codes, uint8_t* scales) {
  for (int64_t b = 0; b < n; b += kFp8Block) {
    const float a = BlockAbsMax<kFp8Block>(x + b);
    const uint8_t scale = Pow2CeilCode(RaiseToFloor(a, kFp8Floor) * kInverseE4m3Max);
    scales[b / kFp8Block] = scale;
    if (!IsFinite(a)) {
      std::memset(codes + b, kE4m3Nan, kFp8Block);
      continue;
    }
    const Floats inverse = hn::Set(kFloats, InverseScale(scale));
    for (int64_t i = b; i < b + kFp8Block; i += Lanes()) {
      StoreBytes(E4m3Codes(hn::Mul(hn::LoadU(kFloats, x + i), inverse)), codes + i);
    }
  }
}

void DequantiseFp8Impl(const uint8_t* codes, const uint8_t* scales, int64_t n, float* x) {
  for (int64_t b = 0; b < n; b += kFp8Block) {
    const Floats s = hn::Set(kFloats, Ue8m0ToFloat(scales[b / kFp8Block]));
    for (int64_t i = b; i < b + kFp8Block; i += Lanes()) {
      hn::StoreU(hn::Mul(E4m3Values(LoadBytes(codes + i)), s), kFloats, x + i);
    }
  }
}

void QuantiseFp4Impl(const float* x, int64_t n, uint8_t* packed, uint8_t* scales) {
  HWY_ALIGN uint8_t codes[kFp4Block];
  for (int64_t b = 0; b < n; b += kFp4Block) {
    const float a = BlockAbsMax<kFp4Block>(x + b);
    const uint8_t scale = Pow2CeilCode(RaiseToFloor(a, kFp4Floor) * kInverseE2m1Max);
    scales[b / kFp4Block] = scale;
    if (!IsFinite(a)) {
      std::memset(packed + b / 2, kE2m1Poison, kFp4Block / 2);
      continue;
    }
    const Floats inverse = hn::Set(kFloats, InverseScale(scale));
    for (int64_t i = 0; i < kFp4Block; i += Lanes()) {
      StoreBytes(E2m1Codes(hn::Mul(hn::LoadU(kFloats, x + b + i), inverse)), codes + i);
    }
    PackNibbles<kFp4Block>(codes, packed + b / 2);
  }
}

void DequantiseFp4Impl(const uint8_t* packed, const uint8_t* scales, int64_t n, float* x) {
  for (int64_t b = 0; b < n; b += kFp4Block) {
    DequantiseFp4BlockOf<kFp4Block>(packed + b / 2, Ue8m0ToFloat(scales[b / kFp4Block]), x + b);
  }
}

void QuantiseFp4Block16Impl(const float* x, int64_t n, uint8_t* packed, uint8_t* scales) {
  HWY_ALIGN uint8_t codes[kFp4Block16];
  for (int64_t b = 0; b < n; b += kFp4Block16) {
    const float a = BlockAbsMax<kFp4Block16>(x + b);
    if (!IsFinite(a)) {
      scales[b / kFp4Block16] = kE4m3Nan;
      std::memset(packed + b / 2, kE2m1Poison, kFp4Block16 / 2);
      continue;
    }
    const uint8_t scale = FloatToE4m3(RaiseToFloor(a, kFp4Block16Floor) / 6.0f);
    scales[b / kFp4Block16] = scale;
    const Floats s = hn::Set(kFloats, E4m3ToFloat(scale));
    for (int64_t i = 0; i < kFp4Block16; i += Lanes()) {
      StoreBytes(E2m1Codes(hn::Div(hn::LoadU(kFloats, x + b + i), s)), codes + i);
    }
    PackNibbles<kFp4Block16>(codes, packed + b / 2);
  }
}

void DequantiseFp4Block16Impl(const uint8_t* packed, const uint8_t* scales, int64_t n, float* x) {
  for (int64_t b = 0; b < n; b += kFp4Block16) {
    DequantiseFp4BlockOf<kFp4Block16>(packed + b / 2, E4m3ToFloat(scales[b / kFp4Block16]), x + b);
  }
}

void QdqFp8Impl(const float* x, int64_t n, float* y) {
  for (int64_t b = 0; b < n; b += kFp8Block) {
    const float a = BlockAbsMax<kFp8Block>(x + b);
    if (!IsFinite(a)) {
      for (int64_t i = b; i < b + kFp8Block; ++i) y[i] = E4m3ToFloat(kE4m3Nan);
      continue;
    }
    const uint8_t scale = Pow2CeilCode(RaiseToFloor(a, kFp8Floor) * kInverseE4m3Max);
    const Floats inverse = hn::Set(kFloats, InverseScale(scale)), s = hn::Set(kFloats, Ue8m0ToFloat(scale));
    for (int64_t i = b; i < b + kFp8Block; i += Lanes()) {
      const Floats value = hn::Mul(hn::LoadU(kFloats, x + i), inverse);
      // Rounds to e4m3 without making the code: the same two cases as E4m3Codes.
      const Bits magnitude = hn::Min(Magnitude(value), SetBits(0x43E00000u));
      const Floats big = hn::Set(kFloats, 16384.0f);
      const Floats subnormal = hn::Sub(hn::Add(hn::BitCast(kFloats, magnitude), big), big);
      const Bits normal = hn::And(RoundMantissa<20>(magnitude), SetBits(0xFFF00000u));
      const Bits rounded =
          hn::IfThenElse(hn::Lt(magnitude, SetBits(0x3C800000u)), hn::BitCast(kBits, subnormal), normal);
      hn::StoreU(hn::Mul(hn::BitCast(kFloats, hn::Or(rounded, SignOf(value))), s), kFloats, y + i);
    }
  }
}

}  // namespace
}  // namespace senko::numerics::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace senko::numerics {

HWY_EXPORT(QuantiseFp8Impl);
HWY_EXPORT(DequantiseFp8Impl);
HWY_EXPORT(QuantiseFp4Impl);
HWY_EXPORT(DequantiseFp4Impl);
HWY_EXPORT(QuantiseFp4Block16Impl);
HWY_EXPORT(DequantiseFp4Block16Impl);
HWY_EXPORT(QdqFp8Impl);

void QuantiseFp8Row(const float* x, int64_t n, uint8_t* codes, uint8_t* scales) {
  SENKO_CHECK(n >= 0 && n % kFp8Block == 0);
  HWY_DYNAMIC_DISPATCH(QuantiseFp8Impl)(x, n, codes, scales);
}

void DequantiseFp8Row(const uint8_t* codes, const uint8_t* scales, int64_t n, float* x) {
  SENKO_CHECK(n >= 0 && n % kFp8Block == 0);
  HWY_DYNAMIC_DISPATCH(DequantiseFp8Impl)(codes, scales, n, x);
}

void QuantiseFp4Row(const float* x, int64_t n, uint8_t* packed, uint8_t* scales) {
  SENKO_CHECK(n >= 0 && n % kFp4Block == 0);
  HWY_DYNAMIC_DISPATCH(QuantiseFp4Impl)(x, n, packed, scales);
}

void DequantiseFp4Row(const uint8_t* packed, const uint8_t* scales, int64_t n, float* x) {
  SENKO_CHECK(n >= 0 && n % kFp4Block == 0);
  HWY_DYNAMIC_DISPATCH(DequantiseFp4Impl)(packed, scales, n, x);
}

void QuantiseFp4Block16Row(const float* x, int64_t n, uint8_t* packed, uint8_t* scales) {
  SENKO_CHECK(n >= 0 && n % kFp4Block16 == 0);
  HWY_DYNAMIC_DISPATCH(QuantiseFp4Block16Impl)(x, n, packed, scales);
}

void DequantiseFp4Block16Row(const uint8_t* packed, const uint8_t* scales, int64_t n, float* x) {
  SENKO_CHECK(n >= 0 && n % kFp4Block16 == 0);
  HWY_DYNAMIC_DISPATCH(DequantiseFp4Block16Impl)(packed, scales, n, x);
}

void QdqFp8Row(const float* x, int64_t n, float* y, bool round_first) {
  SENKO_CHECK(n >= 0 && n % kFp8Block == 0);
  if (round_first) {
    RoundBf16Row(x, n, y);
    x = y;
  }
  HWY_DYNAMIC_DISPATCH(QdqFp8Impl)(x, n, y);
}

}  // namespace senko::numerics
#endif
