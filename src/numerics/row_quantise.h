// The roundings of bf16.h and the quantisers of quantise.h over whole rows, with SIMD chosen at run time.
//
// Every function gives the bits of its scalar namesake for every input: ties, clamps, subnormals, the sign of
// zero, NaN and infinity included (a NaN that a Dequantise or Qdq returns is promised to be a NaN, no more).
// Rows are contiguous and need no alignment; an output may be its own input only where said. n = 0 is a
// no-op. A row length that is not whole blocks, or a negative one, is our own fault: SENKO_CHECK. Safe from
// any thread.
#pragma once

#include <cstdint>

namespace senko::numerics {

// x[n] -> codes[n] e4m3, scales[n / 32] ue8m0. n % 32 == 0.
void QuantiseFp8Row(const float* x, int64_t n, uint8_t* codes, uint8_t* scales);
void DequantiseFp8Row(const uint8_t* codes, const uint8_t* scales, int64_t n, float* x);

// x[n] -> packed[n / 2] e2m1 pairs (element 2k in the low nibble), scales[n / 32] ue8m0. n % 32 == 0.
void QuantiseFp4Row(const float* x, int64_t n, uint8_t* packed, uint8_t* scales);
void DequantiseFp4Row(const uint8_t* packed, const uint8_t* scales, int64_t n, float* x);

// x[n] -> packed[n / 2] e2m1 pairs, scales[n / 16] e4m3. n % 16 == 0.
void QuantiseFp4Block16Row(const float* x, int64_t n, uint8_t* packed, uint8_t* scales);
void DequantiseFp4Block16Row(const uint8_t* packed, const uint8_t* scales, int64_t n, float* x);

// y[i] = the value Dequantise gives for what Quantise makes of x: the activation rounding of `lin8`
// (model.md 3.0). With `round_first`, x is rounded to bf16 before. n % 32 == 0. y may be x.
void QdqFp8Row(const float* x, int64_t n, float* y, bool round_first);

// y[i] = RoundToBf16(x[i]). Any n >= 0. y may be x.
void RoundBf16Row(const float* x, int64_t n, float* y);
void FloatToBf16Row(const float* x, int64_t n, uint16_t* codes);
void Bf16ToFloatRow(const uint16_t* codes, int64_t n, float* x);

}  // namespace senko::numerics
