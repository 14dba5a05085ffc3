// The rotation the references use: plain scalar code that shares nothing with the fast one, so that a fault
// of either shows as a difference (model.md 3.3, 11.2).
#pragma once

#include <cstdint>

#include "numerics/bf16.h"

namespace senko::ops {

// The contract of RopeRotate (norm.h).
inline void RopeRotateReference(float* x, const float* table_row, int64_t pairs, bool inverse, bool round_bf16) {
  for (int64_t n = 0; n < pairs; ++n) {
    const float cosine = table_row[2 * n];
    const float sine = inverse ? -table_row[2 * n + 1] : table_row[2 * n + 1];
    // volatile: each product is rounded to float32 on its own. gcc 12 fuses an alternating sum and difference
    // even under -ffp-contract=off.
    const volatile float first_by_cosine = x[2 * n] * cosine;
    const volatile float second_by_sine = x[2 * n + 1] * sine;
    const volatile float first_by_sine = x[2 * n] * sine;
    const volatile float second_by_cosine = x[2 * n + 1] * cosine;
    const float real = first_by_cosine - second_by_sine;
    const float imaginary = first_by_sine + second_by_cosine;
    x[2 * n] = round_bf16 ? numerics::RoundToBf16(real) : real;
    x[2 * n + 1] = round_bf16 ? numerics::RoundToBf16(imaginary) : imaginary;
  }
}

}  // namespace senko::ops
