#include "api/context_length.h"

#include <algorithm>
#include <string>

#include "api/errors.h"

namespace senko::api {

namespace {

[[noreturn]] void Refuse(const EngineLimits& limits, std::string_view field, const std::string& why) {
  throw RequestError(
      ErrorCode::kInvalidArgument,
      "this model's maximum context length is " + std::to_string(limits.max_model_len) + " tokens, but " + why,
      std::string(field), std::string(kContextLengthExceeded));
}

}  // namespace

int64_t ResolveMaxTokens(int64_t prompt_tokens, const TokenBudget& budget, const EngineLimits& limits) {
  const int64_t rest = limits.max_model_len - prompt_tokens;
  const auto refuse = [&](std::string_view field, const std::string& why) {
    Refuse(limits, field, "the prompt has " + std::to_string(prompt_tokens) + why);
  };
  if (rest < std::min<int64_t>(budget.asked.value_or(1), 1)) {
    refuse(budget.prompt_field, budget.asked ? " and " + std::to_string(*budget.asked) + " more were asked for"
                                             : ", which leaves no room for an answer");
  }
  const int64_t scored = budget.logprobs < 0 ? INT64_MAX : kMaxScores / (budget.choices * (budget.logprobs + 1));
  if (!budget.asked) return std::min(budget.otherwise.value_or(rest), std::min(rest, scored));
  if (*budget.asked > rest) {
    refuse(budget.field,
           " and " + std::to_string(*budget.asked) + " more were asked for; at most " + std::to_string(rest) + " fit");
  }
  if (*budget.asked > scored) {
    throw RequestError(ErrorCode::kInvalidArgument,
                       std::string(budget.field) + " asks for the scores of " + std::to_string(*budget.asked) +
                           " tokens in each of " + std::to_string(budget.choices) + " choices of one answer; with " +
                           std::to_string(budget.logprobs) + " alternatives each at most " + std::to_string(scored) +
                           " are given: ask for less, fewer choices or logprobs, or a stream, which has no such limit",
                       std::string(budget.field));
  }
  return *budget.asked;
}

void RefuseLength(const EngineLimits& limits, int64_t at_least, int64_t most) {
  const std::string tokens = "the prompt has at least " + std::to_string(at_least);
  Refuse(limits, "prompt",
         most < 0 ? tokens + ", which leaves no room for an answer"
                  : tokens + ", and no more than " + std::to_string(most) + " are counted here");
}

void CheckMinTokens(int64_t min_tokens, int64_t max_tokens) {
  if (min_tokens <= max_tokens) return;
  throw RequestError(ErrorCode::kInvalidArgument,
                     "min_tokens must be at most the " + std::to_string(max_tokens) +
                         " tokens that max_tokens, the model's length and the scores of one answer allow here",
                     "min_tokens");
}

void CheckPrompt(std::span<const int32_t> prompt, const EngineLimits& limits, std::string_view field) {
  const auto refuse = [&](const std::string& why) {
    throw RequestError(ErrorCode::kInvalidArgument, std::string(field) + " " + why, std::string(field));
  };
  if (prompt.empty()) refuse("must not be empty");
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] < 0 || prompt[i] >= limits.vocab_size) {
      refuse("holds at position " + std::to_string(i) + " an id outside the vocabulary of " +
             std::to_string(limits.vocab_size));
    }
    if (prompt[i] == limits.image_token && limits.image_token >= 0) {
      refuse("holds at position " + std::to_string(i) +
             " the image token, which stands for pixels; none are read here");
    }
  }
}

void CheckPromptScores(int64_t tokens, int logprobs, std::string_view field) {
  if (logprobs < 0) return;
  const int64_t most = kMaxScores / (logprobs + 1);
  if (tokens <= most) return;
  throw RequestError(ErrorCode::kInvalidArgument,
                     std::string(field) + " asks for the scores of " + std::to_string(tokens) +
                         " prompt tokens in one answer; with " + std::to_string(logprobs) +
                         " alternatives each at most " + std::to_string(most) + " are given",
                     std::string(field));
}

}  // namespace senko::api
