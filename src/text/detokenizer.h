// Token ids to text, one id at a time.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"
#include "text/utf8_stream.h"

namespace senko::text {

// One generated sequence. What Push and Finish return, joined, equals Tokenizer::Decode of all ids, whatever
// the ids are; each single piece is well-formed UTF-8 (a character split over tokens comes out with its last
// byte). A character that is never completed becomes one U+FFFD, at the latest in Finish. Not thread-safe;
// the tokenizer must outlive it.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}
  // Errors: kInvalidArgument for an id outside the vocabulary.
  std::string Push(int32_t id);
  // The end of the sequence.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  Utf8Stream stream_;
};

}  // namespace senko::text
