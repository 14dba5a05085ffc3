// Strict UTF-8, one code point at a time (Unicode 3.9, table 3-7: no overlong forms, no surrogates).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace senko::text {

// What an ill-formed byte decodes to. It belongs to no character class.
inline constexpr char32_t kInvalidCodePoint = 0xFFFFFFFF;

struct CodePoint {
  char32_t value = kInvalidCodePoint;
  uint32_t size_bytes = 1;  // 1 to 4; 1 for an ill-formed byte
};

// Bytes that a sequence starting with `lead` has, or 0 if no sequence starts with it.
inline uint32_t SequenceBytes(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) return 3;
  return lead < 0xF5 ? 4 : 0;
}

// Whether `byte` may be the second byte after `lead` (only there do the bounds depend on the lead).
inline bool ValidSecondByte(unsigned char lead, unsigned char byte) {
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  return byte >= low && byte <= high;
}

// Decodes at `at` < bytes.size(). An ill-formed or cut sequence yields {kInvalidCodePoint, 1}.
inline CodePoint DecodeUtf8(std::string_view bytes, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[at + i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const uint32_t size = SequenceBytes(lead);
  if (size == 0 || bytes.size() - at < size || !ValidSecondByte(lead, byte(1))) return {};
  char32_t value = lead & (0xFFu >> (size + 1));
  for (uint32_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    value = value << 6 | (byte(i) & 0x3F);
  }
  return {value, size};
}

// Appends a scalar value (never a surrogate or kInvalidCodePoint).
inline void AppendUtf8(char32_t value, std::string* out) {
  if (value < 0x80) {
    out->push_back(static_cast<char>(value));
  } else if (value < 0x800) {
    out->push_back(static_cast<char>(0xC0 | value >> 6));
    out->push_back(static_cast<char>(0x80 | (value & 0x3F)));
  } else if (value < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | value >> 12));
    out->push_back(static_cast<char>(0x80 | (value >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (value & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | value >> 18));
    out->push_back(static_cast<char>(0x80 | (value >> 12 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (value >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (value & 0x3F)));
  }
}

}  // namespace senko::text
