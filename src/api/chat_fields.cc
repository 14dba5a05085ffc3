#include "api/chat_fields.h"

#include <utility>

#include "api/chat_prompt.h"
#include "api/message_fields.h"
#include "api/stream_fields.h"
#include "api/tool_fields.h"

namespace senko::api {
namespace {

// What the fields of a request that turn thinking on or off say: they may not contradict each other. An effort asks for
// thinking, or for none; the one that clients send unasked says nothing.
class ThinkingSaid {
 public:
  void Add(const Fields& fields, std::string_view name, bool on) {
    for (const auto& [other, value] : said_) {
      if (value != on) fields.Fail(name, "contradicts " + other + "; send one of them");
    }
    said_.emplace_back(fields.Path(name), on);
  }
  void AddEffort(const Fields& fields, std::string_view name, const Json& effort) {
    if (effort != "medium") Add(fields, name, effort != "none");
  }

 private:
  std::vector<std::pair<std::string, bool>> said_;
};

// DeepSeek's {"type": "enabled" | "disabled"}.
void ReadThinking(Fields* fields, text::Conversation* conversation, ThinkingSaid* said) {
  const Json* thinking = fields->Object("thinking");
  if (thinking == nullptr) return;
  Fields inner(*thinking, "thinking");
  const std::string type = inner.String("type").value_or("");
  if (type != "enabled" && type != "disabled") inner.Fail("type", "must be enabled or disabled");
  inner.Finish();
  conversation->thinking = type == "enabled";
  said->Add(*fields, "thinking", conversation->thinking);
}

void ReadTemplateFields(Fields* fields, text::Conversation* conversation, ThinkingSaid* said) {
  const Json* arguments = fields->Object("chat_template_kwargs");
  if (arguments == nullptr) return;
  Fields inner(*arguments, "chat_template_kwargs");
  for (const std::string_view name : {"thinking", "enable_thinking"}) {
    const auto on = inner.Bool(name);
    if (!on) continue;
    conversation->thinking = *on;
    said->Add(inner, name, *on);
  }
  if (const Json* effort = inner.Find("reasoning_effort")) {
    const Json* other = fields->Find("reasoning_effort");
    if (other != nullptr && *other != *effort) inner.Fail("reasoning_effort", "contradicts reasoning_effort");
    said->AddEffort(inner, "reasoning_effort", *effort);
    ApplyEffort(*effort, inner, "reasoning_effort", conversation);
  }
  if (const auto drop = inner.Bool("drop_thinking")) conversation->drop_thinking = *drop;
  inner.Finish();
}

}  // namespace

ChatFields ReadChat(Fields* fields, const ApiContext& context) {
  ChatFields out;
  text::Conversation& conversation = out.conversation;
  conversation.thinking = context.options().default_thinking;
  const Json::array_t* messages = fields->Array("messages");
  if (messages == nullptr || messages->empty()) fields->Fail("messages", "must be a list of at least one message");
  conversation.messages = ReadChatMessages(*messages);

  ThinkingSaid said;
  ReadThinking(fields, &conversation, &said);
  if (const Json* effort = fields->Find("reasoning_effort")) {
    said.AddEffort(*fields, "reasoning_effort", *effort);
    ApplyEffort(*effort, *fields, "reasoning_effort", &conversation);
  }
  ReadTemplateFields(fields, &conversation, &said);
  ReadTextFormat(fields, "response_format");

  const bool continues = fields->Bool("continue_final_message").value_or(false);
  const auto generation_prompt = fields->Bool("add_generation_prompt");
  text::Message& last = conversation.messages.back();
  if (continues) {
    if (generation_prompt.value_or(false)) {
      fields->Fail("add_generation_prompt", "cannot be true together with continue_final_message");
    }
    if (last.role != text::Role::kAssistant) {
      fields->Fail("continue_final_message", "needs an assistant message at the end");
    }
    last.prefix = true;
  } else if (!generation_prompt.value_or(true)) {
    fields->Fail("add_generation_prompt", "may be false only with continue_final_message");
  }
  if (last.prefix && !last.tool_calls.empty()) {
    fields->Fail("messages", "must not end with a turn to be continued behind its tool calls");
  }
  ToolFields tools = ReadChatTools(fields);
  out.one_call = tools.one_call;
  UseTools(std::move(tools), &conversation);
  return out;
}

}  // namespace senko::api
