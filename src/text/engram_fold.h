// The text normaliser behind the Engram token map (model.md 3.7 and 11.12). Internal to the room.
#pragma once

#include <string>
#include <string_view>

namespace senko::text {

// NFKC, NFD, removal of accents and lower-casing, as the `tokenizers` package's normalisers do them (their
// Unicode tables stopped at about version 9). Appends what one code point becomes: the stages act on code
// points one by one, because decomposing undoes composing, and every mark that reordering could move is
// removed.
void FoldCodePoint(char32_t code_point, std::u32string* out);

// The whole chain: fold; every run of [ \t\r\n] becomes one space; white space is stripped from both ends,
// unless the text is exactly one space, which stays. `text` is well-formed UTF-8; so is the result, which may
// be empty.
std::string EngramFold(std::string_view text);

}  // namespace senko::text
