// tokenizer.json, read and checked but not yet compiled. Internal to the room.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace senko::text {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // matches only between non-word characters
  bool lstrip = false;       // swallows white space before it
  bool rstrip = false;       // swallows white space after it
  bool normalized = false;   // matched in a second pass, after the others
  bool special = false;      // left out by Decode(skip_special)
};

struct TokenizerFile {
  std::vector<std::pair<std::string, int32_t>> vocab;       // spelling, id; in the file's order
  std::vector<std::pair<std::string, std::string>> merges;  // spellings; the index is the rank
  std::vector<AddedToken> added;
  std::vector<std::string> split_patterns;  // Split pre-tokenizers in order, all Isolated
  std::vector<std::string> decoder_marks;   // strings the decoder removes from every spelling
  bool ignore_merges = false;               // a word that is a token is that token
};

inline constexpr size_t kMaxTokenizerBytes = size_t{256} << 20;
inline constexpr size_t kMaxAddedTokenBytes = 1024;  // bounds the scan for added tokens at every position

// Reads a byte-level BPE tokenizer (model.md 7.1). The configuration is a closed set: whatever could change
// an id and is not understood is refused by name. `source` names the file in messages. Errors: kCorrupt,
// kUnsupported, kResourceExhausted.
TokenizerFile ParseTokenizerFile(std::string_view json, std::string_view source);

}  // namespace senko::text
