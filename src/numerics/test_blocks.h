// Inputs for the quantisers' tests: a pure function of (kind, seed, block), made from integers only, so that
// the golden file's generator (tests/numerics/make_golden.py) and a GPU make the very same floats.
#pragma once

#include <cstddef>
#include <cstdint>

#include "numerics/bits.h"

namespace senko::numerics {

enum BlockKind {
  kUniform = 0,     // 24-bit integers times one power of two
  kAnyBits = 1,     // any finite float32, all exponents
  kTies = 2,        // small multiples of a power of two: most codes are ties, maxima sit on scale boundaries
  kTiny = 3,        // subnormals and the neighbourhood of every floor
  kNearPowers = 4,  // maxima one ulp around 448 * 2^e and 6 * 2^e
  kSparse = 5,      // signed zeros and few values
  kPoisoned = 6,    // kUniform with one NaN or infinity somewhere
  kE4m3Scales = 7,  // e4m3 scales from their floor to their clamp
  kBlockKinds = 8
};

SENKO_HD inline uint64_t SplitMix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

SENKO_HD inline uint64_t BlockDraw(int kind, uint64_t seed, uint64_t block, uint64_t i) {
  return SplitMix(SplitMix(SplitMix(seed * 64 + static_cast<uint64_t>(kind)) + block) + i);
}

// 2^e for -149 <= e <= 127.
SENKO_HD inline float PowerOfTwo(int e) {
  if (e < -126) return FloatFromBits(1u << (e + 149));
  return FloatFromBits(static_cast<uint32_t>(e + 127) << 23);
}

// Fills x[32]. Every product below has at most 24 significant bits, or is a subnormal rounded once.
SENKO_HD inline void MakeBlock(int kind, uint64_t seed, uint64_t block, float* x) {
  const uint64_t shape = BlockDraw(kind, seed, block, 1000);
  const int wide = static_cast<int>(shape % 60) - 40;  // -40..19
  for (uint64_t i = 0; i < 32; ++i) {
    const uint64_t r = BlockDraw(kind, seed, block, i);
    const uint32_t sign = static_cast<uint32_t>(r >> 63) << 31;
    const uint32_t low = static_cast<uint32_t>(r);
    float value = 0.0f;
    switch (kind) {
      case kAnyBits:
        value = FloatFromBits(low % 0x7F800000u);
        break;
      case kTies:
        value = static_cast<float>(low % 49u) * PowerOfTwo(wide - 2);
        break;
      case kTiny:
        value = FloatFromBits(low % (0x00800000u << (shape % 5)));
        if (shape % 3 == 0) value = FloatFromBits((shape % 2 == 0 ? 0x38D1B717u : 0x3C400000u) - 40u + low % 80u);
        break;
      case kNearPowers:
        value = i == shape % 32 ? FloatFromBits(FloatBits(((shape >> 8) & 1) != 0 ? 448.0f : 6.0f) - 2u + low % 5u)
                                : static_cast<float>(low % 0x600000u) * 0x1p-20f;
        value = value * PowerOfTwo(wide);
        break;
      case kSparse:
        value = low % 4u == 0 ? static_cast<float>(low & 0xFFFFFFu) * PowerOfTwo(wide - 24) : 0.0f;
        break;
      case kE4m3Scales:
        value = static_cast<float>(low & 0xFFFFFFu) * PowerOfTwo(static_cast<int>(shape % 23) - 34);
        break;
      default:
        value = static_cast<float>(low & 0xFFFFFFu) * PowerOfTwo(wide - 24);
    }
    uint32_t bits = FloatBits(value) | sign;
    if (kind == kPoisoned && i == shape % 32)
      bits = sign | (((shape >> 8) & 1) != 0 ? 0x7F800000u : 0x7F800001u + low % 0x7FFFFFu);
    x[i] = FloatFromBits(bits);
  }
}

constexpr uint64_t kFnvStart = 0xCBF29CE484222325u;

// FNV-1a, 64 bit: `size` bytes added to `hash`.
inline uint64_t Fnv(uint64_t hash, const void* data, size_t size) {
  const unsigned char* bytes = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 0x100000001B3u;
  return hash;
}

}  // namespace senko::numerics
