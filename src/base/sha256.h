// SHA-256 (FIPS 180-4) of bytes in memory, and digests as text.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace senko {

using Sha256Digest = std::array<uint8_t, 32>;

Sha256Digest Sha256(std::string_view bytes);

// Lower-case hexadecimal.
std::string Hex(std::span<const uint8_t> bytes);

}  // namespace senko
