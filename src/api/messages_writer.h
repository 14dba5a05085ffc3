// Answers of /v1/messages (Anthropic's API).
#pragma once

#include <memory>

#include "api/answer.h"
#include "api/exchange.h"

namespace senko::api {

struct MessagesStyle {
  bool stream = false;
  bool show_thinking = true;
};

// Content blocks in the order in which they are written: thinking, text, tool_use. Events: message_start, ping, for
// each block content_block_start, deltas, content_block_stop; then message_delta with the reason and usage,
// message_stop.
std::unique_ptr<AnswerWriter> MakeMessagesWriter(std::shared_ptr<Exchange> exchange, MessagesStyle style);

}  // namespace senko::api
