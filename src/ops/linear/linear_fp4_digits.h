// A row of x as integers, for FP4 weights on processors with integer dot products (linear_fp4_vnni.cc).
//
// A group of 32 columns has a unit, a power of two, so that every x is a whole number X of units, and X is written in
// balanced digits of base 256: X = d0 + 256 d1 + 65536 d2. With the weights doubled, which makes them whole as well,
// the group's sum of products is a sum of integers times half a unit. The canonical float sum is the same number as
// long as none of its partial sums needs more than 24 bits, because then it never rounds: only such groups get digits.
#pragma once

#include <cstdint>

#include "ops/linear/linear_span.h"

namespace senko::ops {

struct Fp4Digits {         // of one block of 512 columns, all that a lane's group has in its lane
  int8_t digit[3][8][64];  // [digit][2 j + p][4 lane + i]: column 8 j + 2 i + p of the group
  int32_t offset[3][16];   // -12 times the sum of a lane's digits: the weights are multiplied as 2 w + 12
  float half_unit[16];
  uint8_t digits[16];  // 2 or 3, those that are not all zero; 0: none, the group must be summed in floats
  uint8_t unused[48];
};
static_assert(sizeof(Fp4Digits) % 64 == 0);
inline constexpr int64_t kDigitFloats = sizeof(Fp4Digits) / sizeof(float);

// A group's 32 columns into its lane. Only where CpuHasDigitKernel.
void PackDigits(const float* x, int lane, Fp4Digits& to);

// The digits of block b of a packed row.
inline const Fp4Digits& DigitsOf(const float* packed, int64_t in, int64_t b) {
  return reinterpret_cast<const Fp4Digits*>(packed + PackedCols(in))[b];
}

}  // namespace senko::ops
