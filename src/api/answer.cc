#include "api/answer.h"

#include "api/ids.h"
#include "api/json_text.h"

namespace senko::api {

void Record(const std::vector<Piece>& pieces, std::string_view call_prefix, bool keep_tokens, ChoiceRecord* record) {
  const auto keep = [&](const Piece& piece, std::vector<TokenOutput>* tokens) {
    if (keep_tokens) tokens->insert(tokens->end(), piece.tokens.begin(), piece.tokens.end());
  };
  for (const Piece& piece : pieces) {
    switch (piece.kind) {
      case Piece::Kind::kReasoning:
        record->reasoning += piece.text;
        keep(piece, &record->reasoning_tokens);
        break;
      case Piece::Kind::kContent:
        record->content += piece.text;
        keep(piece, &record->content_tokens);
        break;
      case Piece::Kind::kToolCallBegin:
        record->calls.push_back({NewId(call_prefix), piece.text, {}});
        break;
      case Piece::Kind::kToolArguments:
        record->calls.back().arguments += piece.text;
        break;
      case Piece::Kind::kToolCallEnd:
        break;
    }
  }
}

std::string& AppendUsage(const AnswerUsage& usage, std::string* out) {
  out->append("{\"prompt_tokens\":");
  AppendNumber(usage.prompt_tokens, out).append(",\"completion_tokens\":");
  AppendNumber(usage.completion_tokens, out).append(",\"total_tokens\":");
  AppendNumber(usage.prompt_tokens + usage.completion_tokens, out).append(",\"prompt_tokens_details\":{");
  out->append("\"cached_tokens\":");
  AppendNumber(usage.cached_tokens, out).append("},\"completion_tokens_details\":{\"reasoning_tokens\":");
  return AppendNumber(usage.reasoning_tokens, out).append("}}");
}

}  // namespace senko::api
