#include "api/chat_prompt.h"

#include <algorithm>
#include <unordered_set>

#include "api/context_length.h"
#include "text/special_tokens.h"

namespace senko::api {

namespace {

// A turn of a conversation is there once. Repeated, each time would cost what the remembered turn has, in time and ids,
// however little the request says of it.
void RecallTurns(CallMemory* memory, const MemoryScope& scope, text::Conversation* conversation) {
  std::unordered_set<std::string_view> seen;
  for (text::Message& message : conversation->messages) {
    if (message.role != text::Role::kAssistant || message.tool_calls.empty()) continue;
    if (seen.insert(message.tool_calls[0].id).second) memory->Recall(scope, &message);
  }
}

}  // namespace

ChatPrompt BuildChatPrompt(const Incoming& incoming, const MemoryScope& scope, text::Conversation* conversation,
                           Reading reading) {
  ApiContext& context = *incoming.context;
  RecallTurns(&context.call_memory(), scope, conversation);
  const text::Prompt rendered = text::RenderConversation(*conversation, context.tools_prompt());
  const text::Tokenizer& tokenizer = context.tokenizer();
  ChatPrompt prompt;
  prompt.ids = ReadPrompt(incoming, rendered, reading);
  prompt.turn.start = text::StartOf(rendered);
  if (prompt.turn.start == text::TurnStart::kToolCalls) {
    if (!conversation->required_tool.empty()) {
      prompt.turn.opened = text::InvokeOpening(conversation->required_tool).ToString();
    }
    // The block's opening is behind the header's think token, the last of its kind: no other text of the block is one.
    const auto open = tokenizer.AddedTokenId(text::kThinkOpen), close = tokenizer.AddedTokenId(text::kThinkClose);
    const auto header =
        std::find_if(prompt.ids.rbegin(), prompt.ids.rend(), [&](int32_t id) { return open == id || close == id; });
    prompt.opened_ids.assign(header.base(), prompt.ids.end());
  }
  prompt.rememberable = !conversation->messages.back().prefix;
  CheckPrompt(prompt.ids, context.limits(), "messages");
  return prompt;
}

AnswerPlan PlanChat(const ChatPrompt& prompt, const text::Conversation& conversation, const MemoryScope& scope,
                    GenerationRequest request, TextOptions text) {
  AnswerPlan plan;
  plan.turn = prompt.turn;
  plan.turn->reads_calls = conversation.tool_choice != text::ToolChoice::kNone;
  plan.text = std::move(text);
  if (prompt.rememberable) {
    plan.memory = AnswerPlan::Memory{scope, prompt.opened_ids, conversation.thinking};
  }
  request.prompt = prompt.ids;
  plan.requests.push_back(std::move(request));
  return plan;
}

void UseTools(ToolFields tools, text::Conversation* conversation) {
  conversation->tools = std::move(tools.tools);
  conversation->tool_choice = tools.choice;
  conversation->required_tool = std::move(tools.required);
  const text::Message* last = conversation->messages.empty() ? nullptr : &conversation->messages.back();
  if (last != nullptr && last->prefix && conversation->tool_choice == text::ToolChoice::kRequired) {
    throw RequestError(ErrorCode::kInvalidArgument,
                       "tool_choice cannot ask for a call in a turn that has begun as text", "tool_choice");
  }
}

void ApplyEffort(const Json& value, const Fields& fields, std::string_view name, text::Conversation* conversation) {
  if (const auto number = AsInteger(value, 1, 100)) {
    conversation->effort = static_cast<int>(*number);
    conversation->thinking = true;
    return;
  }
  const std::string word = value.is_string() ? value.get<std::string>() : std::string();
  if (word == "none") {
    conversation->thinking = false;
  } else if (word == "medium") {
    conversation->effort = text::kDefaultEffort;
  } else if (word == "minimal" || word == "low" || word == "high" || word == "xhigh" || word == "max") {
    conversation->effort = text::ParseEffort(word == "minimal" ? "low" : word);
    conversation->thinking = true;
  } else {
    fields.Fail(name, "must be none, minimal, low, medium, high, xhigh, max or an integer from 1 to 100");
  }
}

void CheckModel(Fields* fields, const ApiContext& context) {
  const auto name = fields->String("model");
  const std::vector<std::string>& served = context.options().model_names;
  if (!name || std::find(served.begin(), served.end(), *name) != served.end()) return;
  throw RequestError(ErrorCode::kNotFound, "model: no such model is served here; GET /v1/models lists them", "model",
                     "model_not_found");
}

}  // namespace senko::api
