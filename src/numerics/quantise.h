// The three block quantisers of model.md 3.0: scalar truth for host and device.
//
// Each takes one block of float32 values, writes codes and one scale, and is exactly invertible by the matching
// Dequantise: nothing else in the project may round to these formats. A NaN or infinity in the block gives a NaN
// scale (0xFF ue8m0, 0x7F e4m3), so it is seen after dequantisation instead of being clamped away.
#pragma once

#include <cstdint>

#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/ue8m0.h"

namespace senko::numerics {

inline constexpr int kFp8Block = 32;    // fp8 values per ue8m0 scale
inline constexpr int kFp4Block = 32;    // fp4 values per ue8m0 scale (weights, index keys and queries)
inline constexpr int kFp4Block16 = 16;  // fp4 values per e4m3 scale (compressed entries)

// max |x|, NaN if any value is NaN.
SENKO_HD inline float AbsMax(const float* x, int n) {
  uint32_t top = 0;  // magnitudes order as their bits do, and NaN sorts above infinity
  for (int i = 0; i < n; ++i) {
    const uint32_t magnitude = FloatBits(x[i]) & 0x7FFFFFFFu;
    top = magnitude > top ? magnitude : top;
  }
  return FloatFromBits(top);
}

SENKO_HD inline float Clamp(float x, float limit) { return x > limit ? limit : (x < -limit ? -limit : x); }

// `a` raised to the floor, but a NaN or infinity passes through.
SENKO_HD inline float RaiseToFloor(float a, float floor) { return a < floor ? floor : a; }

// qdq_fp8_32: scale = pow2ceil(max(max|x|, 1e-4) * fp32(1/448)). codes[32].
SENKO_HD inline void QuantiseFp8(const float* x, uint8_t* codes, uint8_t* scale) {
  const float a = RaiseToFloor(AbsMax(x, kFp8Block), 1e-4f);
  *scale = Pow2CeilCode(MultiplyRn(a, 1.0f / 448.0f));
  const float s = Ue8m0ToFloat(*scale);
  for (int i = 0; i < kFp8Block; ++i) codes[i] = FloatToE4m3(Clamp(DivideRn(x[i], s), kE4m3Max));
}

// qdq_fp4_32: scale = pow2ceil(max(max|x|, 6 * 2^-126) * fp32(1/6)). packed[16], element 2k in the low nibble.
SENKO_HD inline void QuantiseFp4(const float* x, uint8_t* packed, uint8_t* scale) {
  const float a = RaiseToFloor(AbsMax(x, kFp4Block), 6.0f * 1.17549435e-38f);
  *scale = Pow2CeilCode(MultiplyRn(a, 1.0f / 6.0f));
  const float s = Ue8m0ToFloat(*scale);
  for (int i = 0; i < kFp4Block; i += 2) {
    const uint8_t low = FloatToE2m1(Clamp(DivideRn(x[i], s), kE2m1Max));
    const uint8_t high = FloatToE2m1(Clamp(DivideRn(x[i + 1], s), kE2m1Max));
    packed[i / 2] = static_cast<uint8_t>(low | (high << 4));
  }
}

// qdq_fp4_16: scale = e4m3(max(max|x|, 6 * 2^-9) / 6), saturating at 448; not a power of two. packed[8].
SENKO_HD inline void QuantiseFp4Block16(const float* x, uint8_t* packed, uint8_t* scale) {
  const float raw = AbsMax(x, kFp4Block16);
  const float a = RaiseToFloor(raw, 6.0f * 0.001953125f);
  const bool finite = (FloatBits(raw) & 0x7F800000u) != 0x7F800000u;
  *scale = finite ? FloatToE4m3(DivideRn(a, 6.0f)) : static_cast<uint8_t>(0x7F);
  const float s = E4m3ToFloat(*scale);
  for (int i = 0; i < kFp4Block16; i += 2) {
    const uint8_t low = FloatToE2m1(Clamp(DivideRn(x[i], s), kE2m1Max));
    const uint8_t high = FloatToE2m1(Clamp(DivideRn(x[i + 1], s), kE2m1Max));
    packed[i / 2] = static_cast<uint8_t>(low | (high << 4));
  }
}

SENKO_HD inline void DequantiseFp8(const uint8_t* codes, uint8_t scale, float* x) {
  const float s = Ue8m0ToFloat(scale);
  for (int i = 0; i < kFp8Block; ++i) x[i] = MultiplyRn(E4m3ToFloat(codes[i]), s);
}

SENKO_HD inline void DequantiseFp4(const uint8_t* packed, uint8_t scale, float* x) {
  const float s = Ue8m0ToFloat(scale);
  for (int i = 0; i < kFp4Block; ++i) {
    x[i] = MultiplyRn(E2m1ToFloat((i & 1) != 0 ? packed[i / 2] >> 4 : packed[i / 2] & 0xF), s);
  }
}

SENKO_HD inline void DequantiseFp4Block16(const uint8_t* packed, uint8_t scale, float* x) {
  const float s = E4m3ToFloat(scale);
  for (int i = 0; i < kFp4Block16; ++i) {
    x[i] = MultiplyRn(E2m1ToFloat((i & 1) != 0 ? packed[i / 2] >> 4 : packed[i / 2] & 0xF), s);
  }
}

}  // namespace senko::numerics
