// One rule for every route: prompt and answer together fit the model's length, or the request is refused.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "senko/senko.h"

namespace senko::api {

struct TokenBudget {
  std::string_view field = "max_tokens";  // names the request's field in errors
  std::string_view prompt_field = "prompt";
  std::optional<int64_t> asked;      // what the request says
  std::optional<int64_t> otherwise;  // when it says nothing; at most the rest. None: all of the rest
  // Of an answer in one piece, which collects the scores of every token: its choices, and alternatives per token. A
  // stream passes them on.
  int64_t choices = 1;
  int logprobs = -1;  // no scores, or none collected
};

// How many scores one answer may hold of prompt tokens, and as many again of the tokens that it generates: about 150 MB
// of JSON.
inline constexpr int64_t kMaxScores = int64_t{1} << 21;

// The tokens to generate behind `prompt_tokens`. Errors: RequestError kInvalidArgument, code context_length_exceeded,
// with the limit, the prompt's true length and what was asked for; for tokens asked for whose scores would be more than
// kMaxScores, one without that code. Nothing asked for: as many as keep within them, so that an answer which gets there
// ends by its length.
int64_t ResolveMaxTokens(int64_t prompt_tokens, const TokenBudget& budget, const EngineLimits& limits);

// What is refused before its budget is looked at: a prompt of `at_least` tokens, counted no further. `most` >= 0: the
// most that a route takes which only counts them.
[[noreturn]] void RefuseLength(const EngineLimits& limits, int64_t at_least, int64_t most = -1);

// min_tokens against max_tokens, as asked for or resolved.
void CheckMinTokens(int64_t min_tokens, int64_t max_tokens);

// An empty prompt, an id outside the vocabulary or an image's id. Errors: RequestError naming `field`.
void CheckPrompt(std::span<const int32_t> prompt, const EngineLimits& limits, std::string_view field);

// `tokens`: of the prompts, as often as they are scored in the answer, each with its own score and `logprobs`
// alternatives; -1: none is. Errors: RequestError naming `field`, for more than kMaxScores of them.
void CheckPromptScores(int64_t tokens, int logprobs, std::string_view field);

}  // namespace senko::api
