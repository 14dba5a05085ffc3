// Random weights in the released formats, a pure function of (seed, tensor name, byte position).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "checkpoint/inventory.h"

namespace senko::checkpoint {

// Chunks are filled independently, in any order: a chunk's bytes do not depend on how the tensor was cut.
inline constexpr uint64_t kFillUnit = 64;  // offsets and, except at the end, lengths are multiples of this

// Fills bytes [offset, offset + out.size()) of `tensor`. Integer generator and exact scaling: every
// multiplication and the one rounding to bf16 are IEEE operations, so the bytes are the same on every
// machine.
//
// Scales are chosen so that activations stay near 1: a linear's weights have root mean square 1/sqrt(fan_in),
// multipliers lie near 1, gate biases and mixing parameters are large enough to matter.
void FillRandom(const ExpectedTensor& tensor, uint64_t seed, uint64_t offset, std::span<std::byte> out);

// The largest m * 2^-e, m in [128, 255], whose square is at most 1 / n.
float InverseSqrt(int64_t n);

// A key for PhiloxDraw from a seed and a name.
uint64_t NameKey(uint64_t seed, std::string_view name);

}  // namespace senko::checkpoint
