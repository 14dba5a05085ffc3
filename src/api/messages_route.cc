// POST /v1/messages, POST /v1/messages/count_tokens
#include "api/chat_prompt.h"
#include "api/context_length.h"
#include "api/ids.h"
#include "api/json_text.h"
#include "api/messages_input.h"
#include "api/messages_writer.h"
#include "api/prefix_scope.h"
#include "api/request_body.h"
#include "api/routes.h"
#include "api/tool_fields.h"

namespace senko::api {
namespace {

constexpr int64_t kMinThinkingBudget = 1024;  // as the API has it

// `budget_tokens` is checked and not enforced: the model decides how long it reasons, within max_tokens.
void ReadThinking(Fields* fields, std::optional<int64_t> max_tokens, text::Conversation* conversation,
                  MessagesStyle* style) {
  const Json* thinking = fields->Object("thinking");
  if (thinking == nullptr) return;
  Fields inner(*thinking, "thinking");
  const std::string type = inner.String("type").value_or("");
  const auto budget = inner.Integer("budget_tokens", kMinThinkingBudget, INT64_MAX);
  const std::string display = inner.String("display").value_or("summarized");
  if (display != "summarized" && display != "omitted") inner.Fail("display", "must be summarized or omitted");
  style->show_thinking = display != "omitted";
  if (type == "enabled") {
    if (!budget) inner.Fail("budget_tokens", "must be there with enabled thinking");
    if (max_tokens && *budget >= *max_tokens) inner.Fail("budget_tokens", "must be below max_tokens");
  } else if (type != "adaptive" && type != "disabled") {
    inner.Fail("type", "must be enabled, adaptive or disabled");
  }
  inner.Finish();
  conversation->thinking = type != "disabled";
}

void ReadOutputConfig(Fields* fields, text::Conversation* conversation) {
  const Json* config = fields->Object("output_config");
  if (config == nullptr) return;
  Fields inner(*config, "output_config");
  if (const Json* effort = inner.Find("effort")) {
    if (*effort == "none" && conversation->thinking) inner.Fail("effort", "contradicts thinking; send one of them");
    const bool thinking = conversation->thinking;
    ApplyEffort(*effort, inner, "effort", conversation);
    conversation->thinking = thinking;  // here it is for `thinking` alone to say
  }
  inner.Refuse({"format", "task_budget"});
  inner.Finish();
}

// Edits that keep everything, or drop what the template would drop anyway, change nothing.
void ReadContextManagement(Fields* fields) {
  const Json* management = fields->Object("context_management");
  if (management == nullptr) return;
  Fields inner(*management, "context_management");
  if (const Json::array_t* edits = inner.Array("edits")) {
    for (size_t i = 0; i < edits->size(); ++i) {
      Fields edit((*edits)[i], Indexed("context_management.edits", i));
      const std::string type = edit.String("type").value_or("");
      const Json* keep = edit.Find("keep");
      if (type != "clear_thinking_20251015" || keep == nullptr || *keep != "all") {
        edit.Fail("type", "is not supported here: no context is cleared", ErrorCode::kUnsupported);
      }
      edit.Finish();
    }
  }
  inner.Finish();
}

// What count_tokens and the real thing share.
struct MessagesFields {
  text::Conversation conversation;
  MessagesStyle style;
  bool one_call = false;
};

MessagesFields ReadMessages(Fields* fields, std::optional<int64_t> max_tokens, const ApiContext& context) {
  MessagesFields out;
  CheckModel(fields, context);
  out.conversation.thinking = false;  // as the API has it: thinking is asked for
  out.conversation.messages = ReadAnthropicMessages(fields);
  ToolFields tools = ReadAnthropicTools(fields);
  out.one_call = tools.one_call;
  UseTools(std::move(tools), &out.conversation);
  ReadThinking(fields, max_tokens, &out.conversation, &out.style);
  ReadOutputConfig(fields, &out.conversation);
  ReadContextManagement(fields);
  fields->Refuse({"mcp_servers", "container"});
  fields->Accept({"cache_control", "betas"});
  return out;
}

}  // namespace

void Messages(const std::shared_ptr<Incoming>& incoming) {
  ApiContext& context = *incoming->context;
  const Json body = ParseBody(incoming->http.body);
  Fields fields(body);
  TokenBudget budget;
  budget.asked = fields.Integer("max_tokens", 1, INT64_MAX);
  if (!budget.asked) fields.Fail("max_tokens", "must be there");
  MessagesFields read = ReadMessages(&fields, budget.asked, context);
  fields.Accept({"metadata", "service_tier", "inference_geo"});

  GenerationRequest request;
  ReadDrawing(&fields, &request.sampling);
  PrefixScope scope = ReadPrefixScope(&fields, *incoming);
  request.cache_salt = std::move(scope.salt);
  TextOptions text;
  text.stops = ReadStops(&fields, "stop_sequences");
  text.one_call = read.one_call;
  read.style.stream = fields.Bool("stream").value_or(false);
  fields.Finish();

  const ChatPrompt prompt = BuildChatPrompt(*incoming, scope.memory, &read.conversation);
  request.id = incoming->http.id;
  request.sampling.max_tokens = ResolveMaxTokens(static_cast<int64_t>(prompt.ids.size()), budget, context.limits());
  AnswerPlan plan = PlanChat(prompt, read.conversation, scope.memory, std::move(request), std::move(text));
  plan.id = NewId("msg_");
  plan.call_prefix = "toolu_";
  plan.stream = read.style.stream;
  plan.writer = MakeMessagesWriter(incoming->exchange, read.style);
  StartGeneration(incoming, std::move(plan));
}

void CountTokens(const std::shared_ptr<Incoming>& incoming) {
  ApiContext& context = *incoming->context;
  const Json body = ParseBody(incoming->http.body);
  Fields fields(body);
  MessagesFields read = ReadMessages(&fields, std::nullopt, context);
  const PrefixScope scope = ReadPrefixScope(&fields, *incoming);
  fields.Finish();
  const ChatPrompt prompt = BuildChatPrompt(*incoming, scope.memory, &read.conversation, Reading::kCount);
  std::string out = "{\"input_tokens\":";
  AppendNumber(static_cast<int64_t>(prompt.ids.size()), &out);
  ReplyNow(*incoming, out += '}');
}

}  // namespace senko::api
