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

// e2m1: word s is step s; fragment a_j has its pair in nibbles j and j + 4. Placed likewise a code is 2^-126 of its
// value.
struct Fp4Tiles {
  static constexpr int kColumns = 64;
  static constexpr int kSteps = 4;
  static constexpr int kMaxScale = 127 + 1;

  // Of byte `byte` of `scales`: 2^(scale - 127 + 126) in both halves.
  __device__ static uint32_t Multiplier(uint32_t scales, int byte) {
    return __byte_perm(scales, 0, 0x4040u + static_cast<uint32_t>(byte) * 0x0101u) * 128u + 0x3F003F00u;
  }
  // `of_g` and `of_g8`: multipliers of outputs g and g + 8.
  __device__ static void Expand(uint32_t w, uint32_t of_g, uint32_t of_g8, uint32_t (&a)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      // Both places of a nibble, sign to bit 15 and the rest to bit 6, by one product: shifts, like the masks, are at
      // half of the rate that this needs, and multiplication is another unit's.
      const uint32_t nibbles = (j < 2 ? w : w >> 8) & (j % 2 == 0 ? 0x000F000Fu : 0x00F000F0u);
      a[j] = MultiplyPairs(nibbles * (j % 2 == 0 ? 0x1040u : 0x0104u) & 0x81C081C0u, j % 2 == 0 ? of_g : of_g8);
    }
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
