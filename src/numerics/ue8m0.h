// ue8m0: a power of two in one byte, value 2^(code - 127); 255 is NaN; no sign, no zero.
#pragma once

#include <cstdint>

#include "numerics/bits.h"

namespace senko::numerics {

// Code 0 is 2^-127, a float32 subnormal.
SENKO_HD inline float Ue8m0ToFloat(uint8_t code) {
  if (code == 0) return FloatFromBits(0x00400000u);
  if (code == 255) return FloatFromBits(0x7FC00000u);
  return FloatFromBits(static_cast<uint32_t>(code) << 23);
}

// The code of the smallest power of two >= t, for normal positive t (model.md 3.0, `pow2ceil`). Infinity, NaN
// and anything past 2^127 give 255, so a poisoned block stays poisoned.
SENKO_HD inline uint8_t Pow2CeilCode(float t) {
  const uint32_t bits = FloatBits(t);
  const uint32_t code = (bits >> 23) + ((bits & 0x7FFFFFu) != 0 ? 1u : 0u);
  return static_cast<uint8_t>(code > 255u ? 255u : code);
}

}  // namespace senko::numerics
