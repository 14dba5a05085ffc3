#include "api/stream_fields.h"

namespace senko::api {

StreamFields ReadStream(Fields* fields) {
  StreamFields out;
  out.stream = fields->Bool("stream").value_or(false);
  const Json* options = fields->Object("stream_options");
  if (options == nullptr) return out;
  if (!out.stream) fields->Fail("stream_options", "needs stream to be true");
  Fields inner(*options, "stream_options");
  out.include_usage = inner.Bool("include_usage").value_or(false);
  out.continuous_usage = inner.Bool("continuous_usage_stats").value_or(false);
  inner.Accept({"include_obfuscation"});
  inner.Finish();
  return out;
}

TokenBudget ReadChatBudget(Fields* fields) {
  TokenBudget budget;
  budget.asked = fields->Integer("max_tokens", 1, INT64_MAX);
  const auto newer = fields->Integer("max_completion_tokens", 1, INT64_MAX);
  if (newer && budget.asked && *newer != *budget.asked) {
    fields->Fail("max_completion_tokens", "contradicts max_tokens; send one of them");
  }
  if (newer) {
    budget.asked = newer;
    budget.field = "max_completion_tokens";
  }
  return budget;
}

void ReadTextOnly(Fields* fields) {
  if (const Json::array_t* modalities = fields->Array("modalities")) {
    if (modalities->size() != 1 || (*modalities)[0] != "text") {
      fields->Fail("modalities", "must be [\"text\"]", ErrorCode::kUnsupported);
    }
  }
  ReadVerbosity(fields);
}

void ReadVerbosity(Fields* fields) {
  if (fields->String("verbosity").value_or("medium") != "medium") {
    fields->Fail("verbosity", "must be medium: the model has no such setting", ErrorCode::kUnsupported);
  }
}

void ReadTextFormat(Fields* fields, std::string_view name) {
  const Json* format = fields->Object(name);
  if (format == nullptr) return;
  Fields inner(*format, fields->Path(name));
  if (inner.String("type").value_or("") != "text") {
    inner.Fail("type", "must be text; no other format can be forced here", ErrorCode::kUnsupported);
  }
  inner.Finish();
}

}  // namespace senko::api
