// bfloat16: the upper half of a float32. Stored as uint16_t.
#pragma once

#include <cstdint>

#include "numerics/bits.h"

namespace senko::numerics {

SENKO_HD inline float Bf16ToFloat(uint16_t code) { return FloatFromBits(static_cast<uint32_t>(code) << 16); }

// Round to nearest even. Overflow goes to infinity as IEEE has it; a NaN stays a (quiet) NaN.
SENKO_HD inline uint16_t FloatToBf16(float x) {
  const uint32_t bits = FloatBits(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// The nearest bf16 value, as a float.
SENKO_HD inline float RoundToBf16(float x) { return Bf16ToFloat(FloatToBf16(x)); }

}  // namespace senko::numerics
