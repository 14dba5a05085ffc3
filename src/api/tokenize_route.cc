// POST /tokenize, POST /detokenize, GET /tokenizer_info
#include <utility>

#include "api/chat_fields.h"
#include "api/chat_prompt.h"
#include "api/json_text.h"
#include "api/prefix_scope.h"
#include "api/read_text.h"
#include "api/request_body.h"
#include "api/routes.h"
#include "text/special_tokens.h"
#include "text/utf8_stream.h"

namespace senko::api {

// A chat is rendered and tokenized as /v1/chat/completions would. A `prompt` is a raw completion's: special tokens'
// spellings are those tokens, unless parse_special is false.
void Tokenize(const std::shared_ptr<Incoming>& incoming) {
  ApiContext& context = *incoming->context;
  const text::Tokenizer& tokenizer = context.tokenizer();
  const Json body = ParseBody(incoming->http.body);
  Fields fields(body);
  CheckModel(&fields, context);
  fields.Accept({"add_special_tokens"});  // the tokenizer adds none
  const bool strings = fields.Bool("return_token_strs").value_or(false);
  std::vector<int32_t> ids;
  if (fields.Find("messages") != nullptr) {
    if (fields.Find("prompt") != nullptr) fields.Fail("prompt", "and messages exclude each other; send one");
    fields.Refuse({"chat_template"});
    const PrefixScope scope = ReadPrefixScope(&fields, *incoming);
    ChatFields chat = ReadChat(&fields, context);
    fields.Finish();
    ids = BuildChatPrompt(*incoming, scope.memory, &chat.conversation, Reading::kCount).ids;
  } else {
    const auto prompt = fields.String("prompt");
    if (!prompt) fields.Fail("prompt", "must be a string (or send messages)");
    const bool special = fields.Bool("parse_special").value_or(true);
    fields.Finish();
    ids = ReadText(*incoming, *prompt, special ? text::AddedTokens::kAll : text::AddedTokens::kNone, Reading::kCount);
  }
  std::string out = "{\"count\":";
  AppendNumber(static_cast<int64_t>(ids.size()), &out) += ",\"max_model_len\":";
  AppendNumber(context.limits().max_model_len, &out) += ",\"tokens\":[";
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i != 0) out += ',';
    AppendNumber(ids[i], &out);
  }
  out += "],\"token_strs\":";
  if (!strings) {
    out += "null";
  } else {
    out += '[';
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i != 0) out += ',';
      AppendString(tokenizer.TokenSpelling(ids[i]), &out);
    }
    out += ']';
  }
  ReplyNow(*incoming, out += '}');
}

void Detokenize(const std::shared_ptr<Incoming>& incoming) {
  ApiContext& context = *incoming->context;
  const Json body = ParseBody(incoming->http.body);
  Fields fields(body);
  CheckModel(&fields, context);
  const Json::array_t* list = fields.Array("tokens", static_cast<size_t>(MostTokens(context.limits())));
  if (list == nullptr) fields.Fail("tokens", "must be a list of token ids");
  std::vector<int32_t> ids;
  for (const Json& item : *list) {
    const auto id = AsInteger(item, 0, context.tokenizer().vocab_size() - 1);
    if (!id) {
      fields.Fail("tokens", "must hold ids from 0 to " + std::to_string(context.tokenizer().vocab_size() - 1));
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  fields.Finish();
  std::string out = "{\"prompt\":";
  AppendString(context.tokenizer().Decode(ids, false), &out);
  ReplyNow(*incoming, out += '}');
}

// For clients that use this tokenizer in place of one of their own. There is no template that they could render: a
// chat's ids come from /tokenize.
void TokenizerInfo(const std::shared_ptr<Incoming>& incoming) {
  const ApiContext& context = *incoming->context;
  std::string out = "{\"tokenizer_class\":\"PreTrainedTokenizerFast\",\"add_bos_token\":false,\"add_eos_token\":false";
  const std::pair<const char*, std::string_view> tokens[] = {{"bos_token", text::kBos}, {"eos_token", text::kEos}};
  for (const auto& [name, spelling] : tokens) {
    out.append(",\"").append(name).append("\":");
    if (context.tokenizer().AddedTokenId(spelling)) {
      AppendString(spelling, &out);
    } else {
      out += "null";
    }
  }
  out += ",\"chat_template\":null,\"model_max_length\":";
  AppendNumber(context.limits().max_model_len, &out);
  ReplyNow(*incoming, out += '}');
}

}  // namespace senko::api
