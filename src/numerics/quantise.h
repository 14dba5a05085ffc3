// The three block quantisers of model.md 3.0: scalar truth for host and device.
//
// Each takes one block of float32 values and writes codes and one scale; the matching Dequantise multiplies
// them out in one rounding. Nothing else in the project may round to these formats (row_quantise.h is the
// same functions over rows). A NaN or infinity anywhere in a block poisons it: a NaN scale (0xFF ue8m0, 0x7F
// e4m3) and every code at its largest positive pattern (0x7F, 0x7), whatever the values' signs, since the
// sign of a NaN that a division makes differs between machines. It is then seen after dequantisation instead
// of being clamped away. Which NaN a Dequantise returns (sign, payload) is not promised; every other bit is
// the same on host and device.
#pragma once

#include <cstdint>

#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/ue8m0.h"

namespace senko::numerics {

inline constexpr int kFp8Block = 32;    // fp8 values per ue8m0 scale
inline constexpr int kFp4Block = 32;    // fp4 values per ue8m0 scale (weights, index keys and queries)
inline constexpr int kFp4Block16 = 16;  // fp4 values per e4m3 scale (compressed entries)

// What max|x| is raised to before it becomes a scale, so that no scale is zero and every block inverts.
inline constexpr float kFp8Floor = 1e-4f;
inline constexpr float kFp4Floor = 6.0f * 0x1p-126f;       // the scale's smallest normal value
inline constexpr float kFp4Block16Floor = 6.0f * 0x1p-9f;  // e4m3's smallest value above zero

inline constexpr float kInverseE4m3Max = 1.0f / 448.0f;  // as rounded float32 constants: the scales of the two
inline constexpr float kInverseE2m1Max = 1.0f / 6.0f;    // ue8m0 quantisers are made by multiplying with these

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

SENKO_HD inline bool IsFinite(float x) { return (FloatBits(x) & 0x7F800000u) != 0x7F800000u; }

// `a` raised to the floor, but a NaN or infinity passes through.
SENKO_HD inline float RaiseToFloor(float a, float floor) { return a < floor ? floor : a; }

// Two e2m1 codes in a byte: element 2k in the low nibble, 2k + 1 in the high one (model.md 2).
SENKO_HD inline uint8_t PackE2m1(float even, float odd, float scale) {
  const uint8_t low = FloatToE2m1(Clamp(DivideRn(even, scale), kE2m1Max));
  const uint8_t high = FloatToE2m1(Clamp(DivideRn(odd, scale), kE2m1Max));
  return static_cast<uint8_t>(low | (high << 4));
}

// qdq_fp8_32: scale = pow2ceil(max(max|x|, 1e-4) * fp32(1/448)). x[32], codes[32].
SENKO_HD inline void QuantiseFp8(const float* x, uint8_t* codes, uint8_t* scale) {
  const float a = AbsMax(x, kFp8Block);
  const bool poisoned = !IsFinite(a);
  *scale = Pow2CeilCode(MultiplyRn(RaiseToFloor(a, kFp8Floor), kInverseE4m3Max));
  const float s = Ue8m0ToFloat(*scale);
  for (int i = 0; i < kFp8Block; ++i) {
    codes[i] = poisoned ? kE4m3Nan : FloatToE4m3(Clamp(DivideRn(x[i], s), kE4m3Max));
  }
}

// qdq_fp4_32: scale = pow2ceil(max(max|x|, 6 * 2^-126) * fp32(1/6)). x[32], packed[16].
SENKO_HD inline void QuantiseFp4(const float* x, uint8_t* packed, uint8_t* scale) {
  const float a = AbsMax(x, kFp4Block);
  const bool poisoned = !IsFinite(a);
  *scale = Pow2CeilCode(MultiplyRn(RaiseToFloor(a, kFp4Floor), kInverseE2m1Max));
  const float s = Ue8m0ToFloat(*scale);
  for (int i = 0; i < kFp4Block; i += 2) packed[i / 2] = poisoned ? kE2m1Poison : PackE2m1(x[i], x[i + 1], s);
}

// qdq_fp4_16: scale = e4m3(max(max|x|, 6 * 2^-9) / 6), saturating at 448; not a power of two. x[16],
// packed[8]. Past 448 * 6 the codes clamp at 6. Quantising the result again is not always the identity
// (model.md 11.4).
SENKO_HD inline void QuantiseFp4Block16(const float* x, uint8_t* packed, uint8_t* scale) {
  const float a = AbsMax(x, kFp4Block16);
  const bool poisoned = !IsFinite(a);
  *scale = poisoned ? kE4m3Nan : FloatToE4m3(DivideRn(RaiseToFloor(a, kFp4Block16Floor), 6.0f));
  const float s = E4m3ToFloat(*scale);
  for (int i = 0; i < kFp4Block16; i += 2) packed[i / 2] = poisoned ? kE2m1Poison : PackE2m1(x[i], x[i + 1], s);
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
