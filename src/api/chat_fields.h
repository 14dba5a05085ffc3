// The conversation of a request in chat completions' words; /tokenize reads it, too.
#pragma once

#include "api/context.h"
#include "api/fields.h"
#include "text/chat.h"

namespace senko::api {

struct ChatFields {
  text::Conversation conversation;
  bool one_call = false;
};

// messages, tools, tool_choice, parallel_tool_calls, reasoning_effort, thinking, chat_template_kwargs,
// continue_final_message, add_generation_prompt, response_format. Errors: RequestError naming the field.
ChatFields ReadChat(Fields* fields, const ApiContext& context);

}  // namespace senko::api
