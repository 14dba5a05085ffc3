// How weights lie in device memory: in the order in which a thread needs them as operand A of the tensor cores.
//
// A unit is 16 outputs x kColumns columns in 512 bytes: lane l of a warp has the 16 bytes at 16 l, its fragments of
// kColumns / 16 steps. A tile has 4 units side by side (64 outputs, what four warps or a warpgroup take), and the units
// of a tile follow each other along K: tile t, column block c, warp w at ((t * blocks + c) * 4 + w) * 512.
//
// With g = l / 4 and t = l % 4 a fragment of a step is a0 = (g, 2t), a1 = (g + 8, 2t), a2 = (g, 2t + 8),
// a3 = (g + 8, 2t + 8): pairs of neighbouring columns of an output, the even one in the low half.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/linear/linear.h"

namespace senko::ops::sm90 {

inline constexpr int kUnitBytes = 512;
inline constexpr int kTileOutputs = 64;

__device__ inline uint32_t MultiplyPairs(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}
// One half of `pair` in both: an operand's modifier, where __byte_perm is an instruction.
__device__ inline uint32_t BothHalves(uint32_t pair, bool high) {
  uint32_t both;
  if (high) {
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\nmov.b32 %0, {high, high};\n}" : "=r"(both) : "r"(pair));
  } else {
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\nmov.b32 %0, {low, low};\n}" : "=r"(both) : "r"(pair));
  }
  return both;
}
// 2^power in both halves; power in [-126, 127].
__device__ inline uint32_t PowerPairs(int power) {
  const uint32_t code = static_cast<uint32_t>(power + 127) << 7;
  return code << 16 | code;
}

// e4m3: a word has a0's pair in its even bytes and a1's in its odd ones, or a2's and a3's. Placed with its exponent in
// the low bits of bf16's, a code is 2^-120 of its value, subnormals included.
struct Fp8Tiles {
  static constexpr int kColumns = 32;
  static constexpr int kSteps = 2;
  static constexpr int kMaxScale = 127 + 7;

  // Multiplier of a block with this ue8m0 scale.
  __device__ static uint32_t Multiplier(uint32_t scale) { return PowerPairs(static_cast<int>(scale) - 127 + 120); }
  // Step `step` of the 16 bytes `unit`.
  __device__ static void Expand(const uint4& unit, int step, uint32_t multiplier, uint32_t (&a)[4]) {
    const uint32_t words[2] = {step == 0 ? unit.x : unit.z, step == 0 ? unit.y : unit.w};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t w = words[i];
      const uint32_t low = ((w << 8) & 0x80008000u) | ((w << 4) & 0x07F007F0u);
      const uint32_t high = (w & 0x80008000u) | ((w >> 4) & 0x07F007F0u);
      a[2 * i] = MultiplyPairs(low, multiplier);
      a[2 * i + 1] = MultiplyPairs(high, multiplier);
    }
  }
};

// e2m1: word s is step s, and fragment a_j has its pair in both halves of the word, where the bits of four codes lie so
// that few instructions place them (shifts, like masks, are at half of the rate that streaming needs): its sign to bit
// 15 and the rest to bit 6 of each half, what is likewise 2^-126 of its value. a0's bits lie there already, a1's 3 bits
// below, a2's 6 below, in the other half; a3's are spread over what is left.
struct Fp4Tiles {
  static constexpr int kColumns = 64;
  static constexpr int kSteps = 4;
  static constexpr int kMaxScale = 127 + 1;

  // What fragment j's code of one half (the even column's is 0) adds to the word.
  __host__ __device__ static uint32_t Place(uint32_t code, int j, int half) {
    const uint32_t sign = code >> 3, rest = code & 7u;
    if (j == 3) return (sign << 13 | rest >> 1 << 10 | (rest & 1u) << 14) << (16 * half);
    return (sign << 9 | rest) << (j == 2 ? 16 * (1 - half) : 16 * half + 6 - 3 * j);
  }
  // Of byte `byte` of `scales`: 2^(scale - 127 + 126) in both halves. Bytes b and b + 2 share the work.
  __device__ static uint32_t Multiplier(uint32_t scales, int byte) {
    const uint32_t both = __byte_perm(scales, 0, byte % 2 == 0 ? 0x4240 : 0x4341) * 128u + 0x3F003F00u;
    return BothHalves(both, byte >= 2);
  }
  // `of_g` and `of_g8`: multipliers of outputs g and g + 8.
  __device__ static void Expand(uint32_t w, uint32_t of_g, uint32_t of_g8, uint32_t (&a)[4]) {
    constexpr uint32_t kPlaces = 0x81C081C0u;
    const uint32_t turned = __funnelshift_r(w, w, 10);
    a[0] = MultiplyPairs(w & kPlaces, of_g);
    a[1] = MultiplyPairs(w * 8u & kPlaces, of_g8);
    a[2] = MultiplyPairs(turned & kPlaces, of_g);
    a[3] = MultiplyPairs((turned & 0x001B001Bu) * 0x1084u & kPlaces, of_g8);
  }
};

// bf16: the 16 bytes are a0, a1, a2, a3.
struct Bf16Tiles {
  static constexpr int kColumns = 16;
  static constexpr int kSteps = 1;
};

__host__ __device__ inline constexpr int UnitColumns(WeightFormat format) {
  return format == WeightFormat::kFp4   ? Fp4Tiles::kColumns
         : format == WeightFormat::kFp8 ? Fp8Tiles::kColumns
                                        : Bf16Tiles::kColumns;
}

}  // namespace senko::ops::sm90
