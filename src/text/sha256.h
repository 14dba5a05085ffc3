// SHA-256 in hexadecimal. Internal to the room.
#pragma once

#include <string>
#include <string_view>

namespace senko::text {

// Lower-case hexadecimal digest of `bytes`.
std::string Sha256Hex(std::string_view bytes);

}  // namespace senko::text
