// Answers of /v1/completions.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/answer.h"
#include "api/exchange.h"
#include "api/logprobs_text.h"

namespace senko::api {

struct CompletionStyle {
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  std::optional<LogprobsText> logprobs;
  std::optional<LogprobsText> prompt_logprobs;  // vLLM's field, whole answers only
  bool echo = false;
  bool echo_only = false;            // max_tokens 0: the prompt, and not the token that had to be drawn
  std::vector<std::string> prompts;  // with echo: each one's text
  int per_prompt = 1;                // choices of a prompt, side by side
};

std::unique_ptr<AnswerWriter> MakeCompletionWriter(std::shared_ptr<Exchange> exchange, CompletionStyle style);

}  // namespace senko::api
