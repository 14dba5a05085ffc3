// A total order of (score, index) pairs as one integer: higher score first, then the lower index.
#pragma once

#include <cstdint>

#include "numerics/bits.h"

namespace senko::ops {

// Monotone in the float's value; +0 and -0 are equal; every NaN is the lowest, below -infinity.
SENKO_HD inline uint32_t OrderKey(float score) {
  const uint32_t bits = numerics::FloatBits(score);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return 0;
  return (bits >> 31) != 0 ? 0x80000000u - magnitude : 0x80000000u + magnitude;
}

// Unique per index; the greater rank is the better one. index in [0, 2^32).
SENKO_HD inline uint64_t Rank(float score, int64_t index) {
  return (uint64_t{OrderKey(score)} << 32) | (0xFFFFFFFFu - static_cast<uint32_t>(index));
}

SENKO_HD inline int64_t RankIndex(uint64_t rank) { return 0xFFFFFFFFu - static_cast<uint32_t>(rank); }

}  // namespace senko::ops
