// A rendered prompt: what the template wrote as control tokens, and everything else as text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace senko::text {

struct Segment {
  bool is_control = false;  // `text` is exactly one control token's spelling
  std::string text;
  std::vector<int32_t> ids;  // not empty: exactly these ids, whatever `text` says
};

// Segments in order; neighbouring text is one segment, because where text is cut decides its tokens.
class Prompt {
 public:
  void Text(std::string_view text);
  void Control(std::string_view spelling);
  // A recorded stretch: its ids as they were sampled; `text` is for showing.
  void Ids(std::vector<int32_t> ids, std::string_view text);
  void Append(const Prompt& other);

  const std::vector<Segment>& segments() const { return segments_; }
  // All segments' text joined: for showing, never for tokenizing.
  std::string ToString() const;
  // Ids: a control segment is its token, text is encoded with AddedTokens::kNone, so it can never become one;
  // recorded ids are copied. Errors: kUnsupported when the tokenizer lacks a control token, naming it.
  // Within `limits`, which are of the whole prompt.
  std::vector<int32_t> Encode(const Tokenizer& tokenizer, const EncodeLimits& limits = {}) const;
  size_t LeastIds(const Tokenizer& tokenizer) const;

 private:
  std::vector<Segment> segments_;
};

}  // namespace senko::text
