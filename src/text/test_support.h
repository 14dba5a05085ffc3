// Shared by this room's tests.
#pragma once

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace senko::text {

inline std::filesystem::path TinyPath() {
  return std::filesystem::path(SENKO_SOURCE_DIR) / "models/tiny/tokenizer.json";
}
// The released tokenizer, where tests/text/make_v41_tokenizer.py puts it; tests that need it skip by name
// without it.
inline std::filesystem::path V41Path() {
  return std::filesystem::path(SENKO_SOURCE_DIR) / ".cache/tokenizers/deepseek-v4.1/tokenizer.json";
}

inline const Tokenizer& Tiny() {
  static const Tokenizer tokenizer = Tokenizer::FromFile(TinyPath());
  return tokenizer;
}

// Any scalar value, low planes more often.
inline char32_t RandomCodePoint(std::mt19937_64& rng) {
  static constexpr char32_t kLimits[] = {0x80, 0x250, 0x3400, 0x10000, 0x110000};
  for (;;) {
    const char32_t c = static_cast<char32_t>(rng() % kLimits[rng() % std::size(kLimits)]);
    if (c < 0xD800 || c >= 0xE000) return c;
  }
}

inline std::string RandomUtf8(std::mt19937_64& rng, size_t characters) {
  std::string text;
  for (size_t i = 0; i < characters; ++i) AppendUtf8(RandomCodePoint(rng), &text);
  return text;
}

inline std::string RandomBytes(std::mt19937_64& rng, size_t size) {
  std::string bytes;
  for (size_t i = 0; i < size; ++i) bytes.push_back(static_cast<char>(rng()));
  return bytes;
}

inline bool IsWellFormed(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = DecodeUtf8(text, at);
    if (c.value == kInvalidCodePoint) return false;
    at += c.size_bytes;
  }
  return true;
}

}  // namespace senko::text
