// Answers of /v1/chat/completions.
#pragma once

#include <memory>
#include <optional>

#include "api/answer.h"
#include "api/exchange.h"
#include "api/logprobs_text.h"

namespace senko::api {

struct ChatStyle {
  bool stream = false;
  bool include_usage = false;     // a last chunk with it
  bool continuous_usage = false;  // in every chunk
  bool include_reasoning = true;
  std::optional<LogprobsText> logprobs;
  std::optional<LogprobsText> prompt_logprobs;  // whole answers only
};

// Streams hold, for each choice: a chunk with the role, chunks with reasoning or content or a call (never two of them),
// one with the finish_reason, which is null before; then, if asked for, the usage with no choices; then [DONE].
std::unique_ptr<AnswerWriter> MakeChatWriter(std::shared_ptr<Exchange> exchange, ChatStyle style);

}  // namespace senko::api
