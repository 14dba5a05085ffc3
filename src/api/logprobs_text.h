// Logprobs in OpenAI's two shapes and vLLM's third.
#pragma once

#include <string>
#include <vector>

#include "senko/senko.h"
#include "text/tokenizer.h"
#include "text/utf8_stream.h"

namespace senko::api {

// Where tokens begin in the text that their bytes make, in characters.
class TextOffsets {
 public:
  // Of a token with these bytes, the next one. What goes on with a character begins where that does.
  int64_t Next(std::string_view bytes);
  // The text ends here, and another follows: what is left of a character goes on no further.
  void EndText();

 private:
  text::Utf8Stream stream_;
  int64_t characters_ = 0;
};

class LogprobsText {
 public:
  // `top`: alternatives to show per token.
  LogprobsText(const text::Tokenizer& tokenizer, int top, bool skip_special)
      : tokenizer_(&tokenizer), top_(top), skip_special_(skip_special) {}

  // A list of {"token", "logprob", "bytes", "top_logprobs"}. `bytes` joined are the text's; a part of a character shows
  // as U+FFFD in `token`. Special tokens without text have null bytes.
  void AppendChat(const std::vector<TokenOutput>& tokens, std::string* out) const;

  // {"tokens", "token_logprobs", "top_logprobs", "text_offset"}: parallel lists. A part of a character is written
  // "bytes:\xf0\x9f". The first `of_prompt` tokens are an echoed prompt's, whose special tokens are shown and behind
  // which another text begins.
  void AppendLegacy(const std::vector<TokenOutput>& tokens, size_t of_prompt, TextOffsets* offset,
                    std::string* out) const;

  // [null, {"<id>": {"logprob", "rank", "decoded_token"}, ...}, ...]: vLLM's prompt_logprobs.
  void AppendPrompt(const std::vector<TokenOutput>& tokens, std::string* out) const;

 private:
  std::string_view Bytes(int32_t id) const;
  std::string Shown(int32_t id) const;        // with U+FFFD
  std::string LegacyShown(int32_t id) const;  // with "bytes:"
  void AppendOne(const TokenLogprob& token, std::string* out) const;

  const text::Tokenizer* tokenizer_;
  int top_;
  bool skip_special_;
};

}  // namespace senko::api
