// Reinterpreting a float as its bits, on host and device.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/host_device.h"

namespace senko::numerics {

SENKO_HD inline uint32_t FloatBits(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
#endif
}

SENKO_HD inline float FloatFromBits(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
#endif
}

// IEEE division rounded to nearest even; the device needs it spelled out under -use_fast_math.
SENKO_HD inline float DivideRn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

// a * b rounded once, never contracted into a fused multiply-add.
SENKO_HD inline float MultiplyRn(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

}  // namespace senko::numerics
