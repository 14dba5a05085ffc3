// Text of a request to token ids, no further than anybody can use them.
#pragma once

#include <cstdint>
#include <exception>
#include <string_view>
#include <vector>

#include "api/context.h"
#include "text/prompt.h"
#include "text/tokenizer.h"

namespace senko::api {

enum class Reading {
  kAnswer,  // a prompt: it has to leave room for an answer. Counted up to twice the model's length or kMostCounted
  kCount,   // asked for its ids or their number alone: MostTokens of them
};

inline constexpr int64_t kMostCounted = 1 << 16;  // a few milliseconds

// What /tokenize, /detokenize and count_tokens take: twice the model's length, or 2^20 if that is more.
int64_t MostTokens(const EngineLimits& limits);

// The ids of `text`. Errors: RequestError kInvalidArgument, code context_length_exceeded, for more tokens than
// `reading` has use for, before the first of them is made where the bytes alone say so; ClientGone.
std::vector<int32_t> ReadText(const Incoming& incoming, std::string_view text, text::AddedTokens added,
                              Reading reading);
std::vector<int32_t> ReadPrompt(const Incoming& incoming, const text::Prompt& prompt, Reading reading);

// Nobody waits for the answer any more.
class ClientGone : public std::exception {
 public:
  const char* what() const noexcept override { return "the client has gone"; }
};

}  // namespace senko::api
