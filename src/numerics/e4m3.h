// e4m3fn: 1 sign, 4 exponent (bias 7), 3 mantissa bits; largest 448; no infinity; 0x7F and 0xFF are NaN.
#pragma once

#include <cstdint>

#include "numerics/bits.h"

namespace senko::numerics {

inline constexpr float kE4m3Max = 448.0f;
inline constexpr uint8_t kE4m3Nan = 0x7F;

SENKO_HD inline float E4m3ToFloat(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t magnitude = code & 0x7Fu;
  if (magnitude == 0x7Fu) return FloatFromBits(sign | 0x7FC00000u);
  if (magnitude < 8u) {  // zero and subnormals: steps of 2^-9
    return FloatFromBits(sign | FloatBits(static_cast<float>(magnitude) * 0.001953125f));
  }
  return FloatFromBits(sign | ((magnitude << 20) + (120u << 23)));
}

// Round to nearest even; magnitudes past 448, infinity included, saturate; NaN stays NaN; the sign of zero is
// kept.
SENKO_HD inline uint8_t FloatToE4m3(float x) {
  const uint32_t bits = FloatBits(x);
  const uint8_t sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint8_t>(sign | 0x7Fu);
  if (magnitude >= 0x43E00000u) return static_cast<uint8_t>(sign | 0x7Eu);  // >= 448
  if (magnitude < 0x3C800000u) {  // below 2^-6: adding 2^14 leaves the multiple of 2^-9 in the low mantissa bits
    const uint32_t rounded = FloatBits(FloatFromBits(magnitude) + 16384.0f);
    return static_cast<uint8_t>(sign | (rounded - 0x46800000u));
  }
  const uint32_t rounded = magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u);
  return static_cast<uint8_t>(sign | ((rounded - (120u << 23)) >> 20));
}

}  // namespace senko::numerics
