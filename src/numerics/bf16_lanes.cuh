// Eight neighbouring bf16 values a lane: one load or store of 16 bytes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace senko::numerics {

// As they lie in memory, the first in the lowest half.
__device__ inline void UnpackBf16x8(uint4 codes, float (&x)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = (&codes.x)[i];
    x[2 * i] = __uint_as_float(word << 16);
    x[2 * i + 1] = __uint_as_float(word & 0xFFFF0000u);
  }
}
// p is 16-byte aligned.
__device__ inline void LoadBf16x8(const __nv_bfloat16* p, float (&x)[8]) {
  UnpackBf16x8(*reinterpret_cast<const uint4*>(p), x);
}

// FloatToBf16 of two values (bf16.h) but for which NaN: `low` in the low half.
__device__ inline uint32_t PairToBf16(float low, float high) {
  uint32_t codes;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(codes) : "f"(high), "f"(low));
  return codes;
}

// x rounded to bf16. p is 16-byte aligned global memory.
__device__ inline void StoreBf16x8(__nv_bfloat16* p, const float (&x)[8]) {
  // In words of PTX, since nvcc 13.0 has split the plain store in four.
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(PairToBf16(x[0], x[1])),
               "r"(PairToBf16(x[2], x[3])), "r"(PairToBf16(x[4], x[5])), "r"(PairToBf16(x[6], x[7]))
               : "memory");
}

__device__ inline void RoundBf16x8(float (&x)[8]) {
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    const uint32_t pair = PairToBf16(x[i], x[i + 1]);
    x[i] = __uint_as_float(pair << 16);
    x[i + 1] = __uint_as_float(pair & 0xFFFF0000u);
  }
}

}  // namespace senko::numerics
