// The printable alphabet of byte-level BPE: one Unicode character per byte, as vocabulary files spell tokens.
#pragma once

#include <string>
#include <string_view>

namespace senko::text {

// Bytes -> their spelling ("a b" -> "aĠb").
std::string SpellBytes(std::string_view bytes);

// A token's bytes as the ByteLevel decoder yields them: the bytes its characters stand for if every character
// is in the alphabet, otherwise the spelling itself (added tokens such as "<｜User｜>").
std::string BytesOfSpelling(std::string_view spelling);

// Whether every character of `spelling` is in the alphabet.
bool IsSpelling(std::string_view spelling);

}  // namespace senko::text
