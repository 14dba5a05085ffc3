// Character classes as the `tokenizers` package's regex engine sees them (measured:
// tools/make_unicode_tables.py).
#pragma once

#include <cstdint>

namespace senko::text {

enum CharClass : uint8_t {
  kLetter = 1,       // \p{L}
  kMark = 2,         // \p{M}
  kNumber = 4,       // \p{N}
  kPunctuation = 8,  // \p{P}
  kSymbol = 16,      // \p{S}
  kSpace = 32,       // \s: White_Space
  kWord = 64,        // \w of the engine that checks single_word added tokens
};

// Bits of CharClass. 0 for kInvalidCodePoint and everything past U+10FFFF.
uint8_t ClassOf(char32_t code_point);

}  // namespace senko::text
