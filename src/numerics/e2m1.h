// e2m1 (FP4): 1 sign, 2 exponent, 1 mantissa bit; magnitudes 0, .5, 1, 1.5, 2, 3, 4, 6. A code is the low
// nibble.
#pragma once

#include <cstdint>

#include "numerics/bits.h"

namespace senko::numerics {

inline constexpr float kE2m1Max = 6.0f;
inline constexpr uint8_t kE2m1Poison = 0x77;  // both nibbles of a packed byte in a block whose scale is NaN

SENKO_HD inline float E2m1ToFloat(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x8u) << 28;
  const uint32_t magnitude = code & 0x7u;
  if (magnitude < 2u) return FloatFromBits(sign | (magnitude * 0x3F000000u));
  return FloatFromBits(sign | ((magnitude << 22) + (126u << 23)));
}

// Round to nearest, ties to the even code (.25 -> 0, .75 -> 1, 1.25 -> 1, 1.75 -> 2, 2.5 -> 2, 3.5 -> 4, 5 ->
// 4); saturates at 6; the sign of zero is kept. NaN has no code: it becomes 6 with its sign, and callers that
// must notice a NaN look at the block's scale.
SENKO_HD inline uint8_t FloatToE2m1(float x) {
  const uint32_t bits = FloatBits(x);
  const uint8_t sign = static_cast<uint8_t>((bits >> 28) & 0x8u);
  const float a = FloatFromBits(bits & 0x7FFFFFFFu);
  uint8_t code = 0;
  code = static_cast<uint8_t>(code + (a > 0.25f));
  code = static_cast<uint8_t>(code + (a >= 0.75f));
  code = static_cast<uint8_t>(code + (a > 1.25f));
  code = static_cast<uint8_t>(code + (a >= 1.75f));
  code = static_cast<uint8_t>(code + (a > 2.5f));
  code = static_cast<uint8_t>(code + (a >= 3.5f));
  code = static_cast<uint8_t>(code + (a > 5.0f));
  if (!(a <= 5.0f)) code = 7;
  return static_cast<uint8_t>(sign | code);
}

}  // namespace senko::numerics
