// POST /v1/chat/completions
#include "api/chat_fields.h"
#include "api/chat_prompt.h"
#include "api/chat_writer.h"
#include "api/context_length.h"
#include "api/ids.h"
#include "api/prefix_scope.h"
#include "api/request_body.h"
#include "api/routes.h"
#include "api/stream_fields.h"

namespace senko::api {
namespace {

// logprobs, top_logprobs, prompt_logprobs.
void ReadLogprobs(Fields* fields, const ApiContext& context, bool skip_special, SamplingOptions* sampling,
                  ChatStyle* style) {
  const bool wanted = fields->Bool("logprobs").value_or(false);
  const auto top = fields->Integer("top_logprobs", 0, kMaxLogprobs);
  if (top.value_or(0) > 0 && !wanted) fields->Fail("top_logprobs", "needs logprobs to be true");
  if (wanted) {
    sampling->logprobs = static_cast<int>(top.value_or(0));
    style->logprobs.emplace(context.tokenizer(), sampling->logprobs, skip_special);
  }
  const auto prompt = fields->Integer("prompt_logprobs", 0, kMaxLogprobs);
  if (!prompt) return;
  if (style->stream) fields->Fail("prompt_logprobs", "is not possible with stream");
  sampling->prompt_logprobs = static_cast<int>(*prompt);
  style->prompt_logprobs.emplace(context.tokenizer(), sampling->prompt_logprobs, skip_special);
}

}  // namespace

void ChatCompletions(const std::shared_ptr<Incoming>& incoming) {
  ApiContext& context = *incoming->context;
  const Json body = ParseBody(incoming->http.body);
  Fields fields(body);
  CheckModel(&fields, context);
  AcceptMetadata(&fields);
  RefuseUnsupported(&fields);
  fields.Refuse({"audio", "documents", "chat_template", "echo"});
  fields.RefusePresent({"web_search_options"});  // {} asks for a search
  ReadTextOnly(&fields);

  GenerationRequest request;
  TextOptions text;
  ReadSampling(&fields, context, &request, &text);
  PrefixScope scope = ReadPrefixScope(&fields, *incoming);
  request.cache_salt = std::move(scope.salt);
  ChatFields chat = ReadChat(&fields, context);
  ChatStyle style;
  const StreamFields stream = ReadStream(&fields);
  style.stream = stream.stream;
  style.include_usage = stream.include_usage;
  style.continuous_usage = stream.continuous_usage;
  style.include_reasoning = fields.Bool("include_reasoning").value_or(true);
  ReadLogprobs(&fields, context, text.skip_special, &request.sampling, &style);
  TokenBudget budget = ReadChatBudget(&fields);
  if (!style.stream) {
    budget.choices = request.n;
    budget.logprobs = request.sampling.logprobs;
  }
  fields.Finish();
  if (budget.asked) CheckMinTokens(request.sampling.min_tokens, *budget.asked);
  text.one_call = chat.one_call;
  text.logprobs = style.logprobs.has_value();

  const ChatPrompt prompt = BuildChatPrompt(*incoming, scope.memory, &chat.conversation);
  request.id = incoming->http.id;
  request.sampling.max_tokens = ResolveMaxTokens(static_cast<int64_t>(prompt.ids.size()), budget, context.limits());
  CheckMinTokens(request.sampling.min_tokens, request.sampling.max_tokens);
  CheckPromptScores(static_cast<int64_t>(prompt.ids.size()), request.sampling.prompt_logprobs, "prompt_logprobs");
  AnswerPlan plan = PlanChat(prompt, chat.conversation, scope.memory, std::move(request), std::move(text));
  plan.id = NewId("chatcmpl-");
  plan.stream = style.stream;
  plan.writer = MakeChatWriter(incoming->exchange, std::move(style));
  StartGeneration(incoming, std::move(plan));
}

}  // namespace senko::api
