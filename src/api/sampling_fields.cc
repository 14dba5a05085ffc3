#include "api/sampling_fields.h"

#include <charconv>

#include "api/context.h"

namespace senko::api {
namespace {

constexpr double kMaxTemperature = 1000;

int64_t ReadId(const Json& value, const EngineLimits& limits, const Fields& fields, const std::string& name) {
  const auto id = AsInteger(value, 0, limits.vocab_size - 1);
  if (!id) fields.Fail(name, "must be a token id from 0 to " + std::to_string(limits.vocab_size - 1));
  return *id;
}

void ReadLogitBias(Fields* fields, const EngineLimits& limits, SamplingOptions* sampling) {
  const Json* biases = fields->Object("logit_bias");
  if (biases == nullptr) return;
  if (biases->size() > kMaxTokenLists) {
    fields->Fail("logit_bias", "must have at most " + std::to_string(kMaxTokenLists) + " tokens");
  }
  for (const auto& [key, value] : biases->items()) {
    int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= limits.vocab_size) {
      fields->Fail("logit_bias", "must name token ids from 0 to " + std::to_string(limits.vocab_size - 1));
    }
    const double bias = value.is_number() ? value.get<double>() : 1e9;
    if (!(bias >= -100 && bias <= 100)) fields->Fail("logit_bias", "must hold numbers from -100 to 100");
    sampling->logit_bias.emplace_back(static_cast<int32_t>(id), static_cast<float>(bias));
  }
}

// A word is barred in the two ways it can begin: at the start of a text and behind a space.
void ReadBadWords(Fields* fields, const text::Tokenizer& tokenizer, SamplingOptions* sampling) {
  const Json::array_t* words = fields->Array("bad_words", kMaxTokenLists / 2);
  if (words == nullptr) return;
  for (const Json& word : *words) {
    if (!word.is_string() || word.get_ref<const std::string&>().empty()) {
      fields->Fail("bad_words", "must be a list of non-empty strings");
    }
    if (word.get_ref<const std::string&>().size() > kMaxStopBytes) {
      fields->Fail("bad_words", "must have strings of at most " + std::to_string(kMaxStopBytes) + " bytes");
    }
    const std::string& text = word.get_ref<const std::string&>();
    sampling->bad_words.push_back(tokenizer.Encode(text, text::AddedTokens::kNone));
    if (text[0] != ' ') sampling->bad_words.push_back(tokenizer.Encode(" " + text, text::AddedTokens::kNone));
  }
}

}  // namespace

void ReadDrawing(Fields* fields, SamplingOptions* sampling) {
  if (const auto value = fields->Number("temperature", 0, kMaxTemperature)) {
    sampling->temperature = static_cast<float>(*value);
  }
  if (const auto value = fields->Number("top_p", 0, 1)) {
    sampling->top_p = static_cast<float>(*value);
    if (!(sampling->top_p > 0)) fields->Fail("top_p", "must be above 0 and at most 1");
  }
  if (const auto value = fields->Number("min_p", 0, 1)) sampling->min_p = static_cast<float>(*value);
  if (const auto value = fields->Integer("top_k", -1, INT32_MAX)) sampling->top_k = std::max<int64_t>(*value, 0);
  if (const auto value = fields->Integer("seed", INT64_MIN, INT64_MAX)) sampling->seed = static_cast<uint64_t>(*value);
}

std::vector<std::string> ReadStops(Fields* fields, std::string_view name) {
  std::vector<std::string> stops;
  const Json* value = fields->Find(name);
  if (value == nullptr) return stops;
  const auto add = [&](const Json& stop) {
    if (!stop.is_string() || stop.get_ref<const std::string&>().empty()) {
      fields->Fail(name, "must be a non-empty string or a list of such");
    }
    if (stop.get_ref<const std::string&>().size() > kMaxStopBytes) {
      fields->Fail(name, "must have strings of at most " + std::to_string(kMaxStopBytes) + " bytes");
    }
    stops.push_back(stop.get<std::string>());
  };
  if (!value->is_array()) {
    add(*value);
    return stops;
  }
  if (value->size() > kMaxStops) fields->Fail(name, "must have at most " + std::to_string(kMaxStops) + " strings");
  for (const Json& stop : *value) add(stop);
  return stops;
}

void ReadSampling(Fields* fields, const ApiContext& context, GenerationRequest* request, TextOptions* text) {
  const EngineLimits& limits = context.limits();
  SamplingOptions& sampling = request->sampling;
  ReadDrawing(fields, &sampling);
  request->n = static_cast<int>(fields->Integer("n", 1, kMaxChoices).value_or(1));
  request->priority = static_cast<int>(fields->Integer("priority", INT32_MIN, INT32_MAX).value_or(0));
  if (request->priority != 0 && !context.options().priorities) {
    fields->Fail("priority",
                 "must be 0: requests run in the order in which they come here, unless the server is "
                 "started with --scheduling-policy priority");
  }
  if (const auto value = fields->Number("presence_penalty", -2, 2)) {
    sampling.presence_penalty = static_cast<float>(*value);
  }
  if (const auto value = fields->Number("frequency_penalty", -2, 2)) {
    sampling.frequency_penalty = static_cast<float>(*value);
  }
  if (const auto value = fields->Number("repetition_penalty", 1e-3, 1e3)) {
    sampling.repetition_penalty = static_cast<float>(*value);
  }
  ReadLogitBias(fields, limits, &sampling);
  ReadBadWords(fields, context.tokenizer(), &sampling);
  if (const Json::array_t* ids = fields->Array("stop_token_ids", kMaxTokenLists)) {
    for (const Json& id : *ids) {
      sampling.stop_token_ids.push_back(static_cast<int32_t>(ReadId(id, limits, *fields, "stop_token_ids")));
    }
  }
  sampling.min_tokens = fields->Integer("min_tokens", 0, INT64_MAX).value_or(0);
  sampling.ignore_eos = fields->Bool("ignore_eos").value_or(false);
  text->stops = ReadStops(fields, "stop");
  text->include_stop = fields->Bool("include_stop_str_in_output").value_or(false);
  text->skip_special = fields->Bool("skip_special_tokens").value_or(true);
  text->min_tokens = sampling.min_tokens;
  text->ignore_eos = sampling.ignore_eos;
}

void AcceptMetadata(Fields* fields) {
  fields->Accept({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
                  "prompt_cache_retention", "prediction", "request_id", "spaces_between_special_tokens",
                  "add_special_tokens"});
}

void RefuseUnsupported(Fields* fields) {
  fields->RefusePresent({"guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_decoding_backend",
                         "guided_whitespace_pattern", "structured_outputs", "structural_tag", "grammar", "json_schema",
                         "regex", "ebnf", "allowed_token_ids"});
  if (fields->Integer("best_of", INT64_MIN, INT64_MAX).value_or(1) != 1) {
    fields->Fail("best_of", "must be 1; ask for n choices instead", ErrorCode::kUnsupported);
  }
  fields->Refuse({"logits_processors", "use_beam_search", "length_penalty", "truncate_prompt_tokens", "truncation_side",
                  "return_token_ids", "return_tokens_as_token_ids", "kv_transfer_params", "vllm_xargs",
                  "mm_processor_kwargs", "prompt_embeds", "lora_path", "thinking_token_budget",
                  "repetition_detection"});
}

}  // namespace senko::api
