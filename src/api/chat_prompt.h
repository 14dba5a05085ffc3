// From a conversation to a prompt's ids and to how its answer begins.
#pragma once

#include <string>
#include <vector>

#include "api/context.h"
#include "api/fields.h"
#include "api/generation.h"
#include "api/read_text.h"
#include "api/tool_fields.h"
#include "text/chat.h"

namespace senko::api {

struct ChatPrompt {
  std::vector<int32_t> ids;
  TurnOpening turn;
  std::vector<int32_t> opened_ids;  // what the prompt wrote behind the turn's header
  bool rememberable = true;         // the turn is new from its header on
};

// Renders and tokenizes, with remembered turns put in place, each at most once. Errors: of RenderConversation and
// ReadPrompt; RequestError for an image's token or a conversation that cannot be continued.
ChatPrompt BuildChatPrompt(const Incoming& incoming, const MemoryScope& scope, text::Conversation* conversation,
                           Reading reading = Reading::kAnswer);

// The plan of a chat's answer but for its writer. `request` and `text` hold the sampling fields.
AnswerPlan PlanChat(const ChatPrompt& prompt, const text::Conversation& conversation, const MemoryScope& scope,
                    GenerationRequest request, TextOptions text);

void UseTools(ToolFields tools, text::Conversation* conversation);

// reasoning_effort: "none", OpenAI's and DeepSeek's names, or 1 to 100; it turns thinking off, or on. OpenAI's
// "minimal" is our "low", its "medium" our default: its clients send that unasked, so it turns nothing on.
void ApplyEffort(const Json& value, const Fields& fields, std::string_view name, text::Conversation* conversation);

// Whether `model`, if given, is one that is served. Error: kNotFound, code model_not_found.
void CheckModel(Fields* fields, const ApiContext& context);

}  // namespace senko::api
