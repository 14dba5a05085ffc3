// POST /v1/responses
#include <algorithm>

#include "api/chat_prompt.h"
#include "api/context_length.h"
#include "api/ids.h"
#include "api/json_text.h"
#include "api/prefix_scope.h"
#include "api/request_body.h"
#include "api/responses_input.h"
#include "api/responses_writer.h"
#include "api/routes.h"
#include "api/stream_fields.h"
#include "api/tool_fields.h"

namespace senko::api {
namespace {

void ReadReasoning(Fields* fields, text::Conversation* conversation) {
  const Json* reasoning = fields->Object("reasoning");
  if (reasoning == nullptr) return;
  Fields inner(*reasoning, "reasoning");
  if (const Json* effort = inner.Find("effort")) ApplyEffort(*effort, inner, "effort", conversation);
  inner.Accept({"summary", "generate_summary"});  // the reasoning itself is given, and no summary made
  inner.Finish();
}

void ReadText(Fields* fields) {
  const Json* text = fields->Object("text");
  if (text == nullptr) return;
  Fields inner(*text, "text");
  ReadTextFormat(&inner, "format");
  ReadVerbosity(&inner);
  inner.Finish();
}

void ReadInclude(Fields* fields) {
  const Json::array_t* include = fields->Array("include");
  if (include == nullptr) return;
  for (const Json& item : *include) {
    // Asked for by clients that keep no state here; reasoning is given in the clear instead.
    if (item != "reasoning.encrypted_content") {
      fields->Fail("include", "may hold reasoning.encrypted_content only", ErrorCode::kUnsupported);
    }
  }
}

// The members of the response object that repeat the request.
std::string Repeated(const Json& body, const SamplingOptions& sampling) {
  std::string out;
  const auto member = [&](std::string_view name, std::string_view otherwise) {
    out.append(out.empty() ? "\"" : ",\"").append(name).append("\":");
    const auto found = body.find(std::string(name));
    out.append(found == body.end() || found->is_null() ? std::string(otherwise) : DumpJson(*found));
  };
  member("instructions", "null");
  member("max_output_tokens", "null");
  member("metadata", "{}");
  member("parallel_tool_calls", "true");
  member("reasoning", "{\"effort\":null,\"summary\":null}");
  member("text", "{\"format\":{\"type\":\"text\"}}");
  member("tool_choice", "\"auto\"");
  member("tools", "[]");
  AppendFloat(sampling.temperature, &(out += ",\"temperature\":"));
  AppendFloat(sampling.top_p, &(out += ",\"top_p\":"));
  return out;
}

}  // namespace

void Responses(const std::shared_ptr<Incoming>& incoming) {
  ApiContext& context = *incoming->context;
  const Json body = ParseBody(incoming->http.body);
  Fields fields(body);
  CheckModel(&fields, context);
  // Nothing is stored here, whatever `store` says: a response cannot be fetched or continued by its id.
  fields.Accept({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
                 "prompt_cache_retention", "client_metadata"});
  fields.Refuse({"previous_response_id", "conversation", "prompt", "background", "max_tool_calls", "top_logprobs",
                 "context_management"});
  if (fields.String("truncation").value_or("disabled") != "disabled") {
    fields.Fail("truncation", "must be disabled: no input is dropped here", ErrorCode::kUnsupported);
  }
  text::Conversation conversation;
  conversation.thinking = context.options().default_thinking;
  conversation.messages = ReadResponsesInput(&fields);
  if (const auto instructions = fields.String("instructions")) {
    text::Message system;
    system.role = text::Role::kSystem;
    system.content = *instructions;
    conversation.messages.insert(conversation.messages.begin(), std::move(system));
  }
  ToolFields tools = ReadResponsesTools(&fields);
  TextOptions text;
  text.one_call = tools.one_call;
  UseTools(std::move(tools), &conversation);
  ReadReasoning(&fields, &conversation);
  ReadText(&fields);
  ReadInclude(&fields);

  GenerationRequest request;
  ReadDrawing(&fields, &request.sampling);
  PrefixScope scope = ReadPrefixScope(&fields, *incoming);
  request.cache_salt = std::move(scope.salt);
  ResponsesStyle style;
  style.stream = fields.Bool("stream").value_or(false);
  if (const Json* options = fields.Object("stream_options")) {
    Fields inner(*options, "stream_options");
    inner.Accept({"include_obfuscation"});
    inner.Finish();
  }
  TokenBudget budget;
  budget.field = "max_output_tokens";
  budget.asked = fields.Integer("max_output_tokens", 1, INT64_MAX);
  fields.Finish();

  const ChatPrompt prompt = BuildChatPrompt(*incoming, scope.memory, &conversation);
  request.id = incoming->http.id;
  request.sampling.max_tokens = ResolveMaxTokens(static_cast<int64_t>(prompt.ids.size()), budget, context.limits());
  style.repeated = Repeated(body, request.sampling);
  AnswerPlan plan = PlanChat(prompt, conversation, scope.memory, std::move(request), std::move(text));
  plan.id = NewId("resp_");
  plan.stream = style.stream;
  plan.writer = MakeResponsesWriter(incoming->exchange, std::move(style));
  StartGeneration(incoming, std::move(plan));
}

}  // namespace senko::api
