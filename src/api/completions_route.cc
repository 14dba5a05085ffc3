// POST /v1/completions
#include "api/chat_prompt.h"
#include "api/completion_writer.h"
#include "api/context_length.h"
#include "api/ids.h"
#include "api/prefix_scope.h"
#include "api/read_text.h"
#include "api/request_body.h"
#include "api/routes.h"
#include "api/stream_fields.h"

namespace senko::api {
namespace {

constexpr size_t kMaxPrompts = 1024;
constexpr int64_t kMaxAllChoices = 2048;              // prompts times n
constexpr int64_t kDefaultMaxTokens = 16;             // as this route has always had it
constexpr int64_t kMaxEchoBytes = int64_t{32} << 20;  // of prompts that one answer repeats, in all of its choices

std::vector<int32_t> ReadIds(const Json::array_t& list, const std::string& path, const EngineLimits& limits) {
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const Json& item : list) {
    const auto id = AsInteger(item, 0, limits.vocab_size - 1);
    if (!id) {
      throw RequestError(
          ErrorCode::kInvalidArgument,
          Indexed(path, ids.size()) + " must be a token id from 0 to " + std::to_string(limits.vocab_size - 1), path);
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

struct PromptField {
  const Json* value;  // a string or a list of ids
  std::string path;
};

// A string, a list of strings, ids, or a list of lists of ids; not yet read.
std::vector<PromptField> FindPrompts(Fields* fields) {
  const Json* prompt = fields->Find("prompt");
  if (prompt == nullptr) fields->Fail("prompt", "must be a string, a list of strings, token ids or lists of token ids");
  std::vector<PromptField> found;
  const auto add = [&](const Json& item, const std::string& path) {
    if (!item.is_string() && !item.is_array()) {
      throw RequestError(ErrorCode::kInvalidArgument, path + " must be a string or a list of token ids", path);
    }
    found.push_back({&item, path});
  };
  const bool is_list = prompt->is_array() && !prompt->empty() && !(*prompt)[0].is_number();
  if (!is_list) {
    add(*prompt, "prompt");
    return found;
  }
  if (prompt->size() > kMaxPrompts) {
    fields->Fail("prompt", "must have at most " + std::to_string(kMaxPrompts) + " items");
  }
  for (size_t i = 0; i < prompt->size(); ++i) add((*prompt)[i], Indexed("prompt", i));
  return found;
}

// Raw prompts are the one place where a control token's spelling is that token.
std::vector<std::vector<int32_t>> ReadPrompts(const std::vector<PromptField>& found, const Incoming& incoming) {
  const EngineLimits& limits = incoming.context->limits();
  std::vector<std::vector<int32_t>> prompts;
  for (const auto& [value, path] : found) {
    prompts.push_back(value->is_string() ? ReadText(incoming, value->get_ref<const std::string&>(),
                                                    text::AddedTokens::kAll, Reading::kAnswer)
                                         : ReadIds(value->get_ref<const Json::array_t&>(), path, limits));
    CheckPrompt(prompts.back(), limits, path);
  }
  return prompts;
}

}  // namespace

void Completions(const std::shared_ptr<Incoming>& incoming) {
  ApiContext& context = *incoming->context;
  const Json body = ParseBody(incoming->http.body);
  Fields fields(body);
  CheckModel(&fields, context);
  AcceptMetadata(&fields);
  RefuseUnsupported(&fields);
  fields.Refuse({"suffix", "messages", "tools"});
  ReadTextFormat(&fields, "response_format");

  GenerationRequest request;
  TextOptions text;
  ReadSampling(&fields, context, &request, &text);
  request.cache_salt = ReadPrefixScope(&fields, *incoming).salt;
  SamplingOptions& sampling = request.sampling;
  CompletionStyle style;
  const StreamFields stream = ReadStream(&fields);
  style.stream = stream.stream;
  style.include_usage = stream.include_usage;
  style.continuous_usage = stream.continuous_usage;
  style.per_prompt = request.n;
  style.echo = fields.Bool("echo").value_or(false);
  if (const auto logprobs = fields.Integer("logprobs", 0, kMaxLogprobs)) {
    sampling.logprobs = static_cast<int>(*logprobs);
    style.logprobs.emplace(context.tokenizer(), sampling.logprobs, text.skip_special);
    if (style.echo) sampling.prompt_logprobs = sampling.logprobs;
  }
  if (const auto prompt = fields.Integer("prompt_logprobs", 0, kMaxLogprobs)) {
    if (style.stream) fields.Fail("prompt_logprobs", "is not possible with stream; echo with logprobs is");
    sampling.prompt_logprobs = std::max(sampling.prompt_logprobs, static_cast<int>(*prompt));
    style.prompt_logprobs.emplace(context.tokenizer(), static_cast<int>(*prompt), text.skip_special);
  }
  TokenBudget budget;
  budget.otherwise = kDefaultMaxTokens;
  budget.asked = fields.Integer("max_tokens", style.echo ? 0 : 1, INT64_MAX);
  style.echo_only = budget.asked == 0;  // scores the prompt alone
  const std::vector<PromptField> found = FindPrompts(&fields);
  fields.Finish();
  if (static_cast<int64_t>(found.size()) * request.n > kMaxAllChoices) {
    fields.Fail("n", "times the number of prompts must be at most " + std::to_string(kMaxAllChoices));
  }
  const int64_t most_waiting = context.limits().max_num_waiting;
  if (static_cast<int64_t>(found.size()) > most_waiting) {  // refused however idle the server is
    fields.Fail("prompt", "must have at most " + std::to_string(most_waiting) +
                              " items: each waits as a request, and the server lets no more wait (--max-num-waiting)");
  }
  if (budget.asked) CheckMinTokens(sampling.min_tokens, *budget.asked);
  std::vector<std::vector<int32_t>> prompts = ReadPrompts(found, *incoming);

  if (!style.stream) {
    budget.choices = static_cast<int64_t>(prompts.size()) * request.n;
    budget.logprobs = sampling.logprobs;
  }

  int64_t prompt_tokens = 0;
  for (const std::vector<int32_t>& ids : prompts) prompt_tokens += static_cast<int64_t>(ids.size());
  // Each choice has its prompt's.
  if (style.echo) CheckPromptScores(prompt_tokens * request.n, sampling.logprobs, "logprobs");
  CheckPromptScores(prompt_tokens * request.n, sampling.prompt_logprobs, "prompt_logprobs");

  AnswerPlan plan;
  text.logprobs = style.logprobs.has_value();
  plan.text = std::move(text);
  int64_t echo_bytes = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    GenerationRequest one = request;
    one.id = incoming->http.id;
    budget.prompt_field = found[i].path;
    const int64_t tokens = ResolveMaxTokens(static_cast<int64_t>(prompts[i].size()), budget, context.limits());
    CheckMinTokens(one.sampling.min_tokens, tokens);
    one.sampling.max_tokens = std::max<int64_t>(tokens, 1);  // the engine draws at least one, which nobody sees
    if (style.echo) {
      style.prompts.push_back(context.tokenizer().Decode(prompts[i], false));
      echo_bytes += static_cast<int64_t>(style.prompts.back().size()) * request.n;
      if (echo_bytes > kMaxEchoBytes) {
        fields.Fail("echo", "would repeat more than " + std::to_string(kMaxEchoBytes) +
                                " bytes of prompts in one answer, the limit; ask for fewer choices or send less");
      }
    }
    one.prompt = std::move(prompts[i]);
    plan.requests.push_back(std::move(one));
  }
  plan.id = NewId("cmpl-");
  plan.stream = style.stream;
  plan.writer = MakeCompletionWriter(incoming->exchange, std::move(style));
  StartGeneration(incoming, std::move(plan));
}

}  // namespace senko::api
