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
  std::optional<int64_t> asked;           // what the request says
  std::optional<int64_t> otherwise;       // when it says nothing; at most the rest. None: all of the rest
};

// The tokens to generate behind `prompt_tokens`. Errors: RequestError kInvalidArgument, code context_length_exceeded,
// with the limit, the prompt's true length and what was asked for.
int64_t ResolveMaxTokens(int64_t prompt_tokens, const TokenBudget& budget, const EngineLimits& limits);

// An empty prompt, an id outside the vocabulary or an image's id. Errors: RequestError naming `field`.
void CheckPrompt(std::span<const int32_t> prompt, const EngineLimits& limits, std::string_view field);

// How many scores of prompt tokens one answer may hold: about 150 MB of JSON.
inline constexpr int64_t kMaxPromptScores = int64_t{1} << 21;

// `tokens`: of the prompts, as often as they are scored in the answer, each with its own score and `logprobs`
// alternatives; -1: none is. Errors: RequestError naming `field`, for more than kMaxPromptScores of them.
void CheckPromptScores(int64_t tokens, int logprobs, std::string_view field);

}  // namespace senko::api
