// Finding added tokens in text. Internal to the room.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer_file.h"

namespace senko::text {

// A piece of a text: an added token, or (id < 0) text between added tokens.
struct Span {
  size_t begin, end;
  int32_t id;
};

// One pass over a set of added tokens. The tokens are owned by the caller and outlive the matcher.
class AddedTokenMatcher {
 public:
  explicit AddedTokenMatcher(std::vector<const AddedToken*> tokens);
  // Appends the spans of text[begin, end): leftmost match first, the longest of those, with each token's
  // flags applied. A match rejected by single_word is skipped whole. Ordinary spans are never empty. Time is
  // bounded by kMaxAddedTokenBytes per byte, in practice by the bytes that begin like a token. Stops where `spans` has
  // more than `most`.
  void Split(std::string_view text, size_t begin, size_t end, size_t most, std::vector<Span>* spans) const;
  bool empty() const { return tokens_.empty(); }

 private:
  const AddedToken* LongestAt(std::string_view text, size_t at) const;

  std::vector<const AddedToken*> tokens_;                  // sorted by content
  std::array<std::pair<size_t, size_t>, 256> by_first_{};  // [first, last) in tokens_ for every first byte
};

}  // namespace senko::text
