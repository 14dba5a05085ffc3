#include "api/logprobs_text.h"

#include <algorithm>

#include "api/json_text.h"
#include "text/utf8.h"
#include "text/utf8_stream.h"

namespace senko::api {
namespace {

bool IsWellFormed(std::string_view bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const text::CodePoint c = text::DecodeUtf8(bytes, at);
    if (c.value == text::kInvalidCodePoint) return false;
    at += c.size_bytes;
  }
  return true;
}

// Of well-formed text.
int64_t Characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace

int64_t TextOffsets::Next(std::string_view bytes) {
  if (bytes.empty()) return characters_;
  std::string out;
  stream_.Push(bytes.substr(0, 1), &out);
  characters_ += Characters(out);
  // The first byte is held back, or belongs to the last character that came out.
  const int64_t at = characters_ - (stream_.holding() ? 0 : 1);
  out.clear();
  stream_.Push(bytes.substr(1), &out);
  characters_ += Characters(out);
  return at;
}

void TextOffsets::EndText() {
  std::string out;
  stream_.Finish(&out);
  characters_ += Characters(out);
}

std::string_view LogprobsText::Bytes(int32_t id) const {
  if (!tokenizer_->IsValid(id)) return {};
  return tokenizer_->TokenBytes(id);
}

std::string LogprobsText::Shown(int32_t id) const {
  std::string shown;
  text::Utf8Stream stream;
  stream.Push(Bytes(id), &shown);
  stream.Finish(&shown);
  return shown;
}

std::string LogprobsText::LegacyShown(int32_t id) const {
  const std::string_view bytes = Bytes(id);
  if (IsWellFormed(bytes)) return std::string(bytes);
  std::string shown = "bytes:";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    shown.append("\\x").push_back("0123456789abcdef"[byte >> 4]);
    shown.push_back("0123456789abcdef"[byte & 15]);
  }
  return shown;
}

void LogprobsText::AppendOne(const TokenLogprob& token, std::string* out) const {
  out->append("{\"token\":");
  AppendString(Shown(token.token), out).append(",\"logprob\":");
  AppendLogprob(token.logprob, out).append(",\"bytes\":");
  if (skip_special_ && tokenizer_->IsValid(token.token) && tokenizer_->IsSpecial(token.token)) {
    out->append("null");
    return;
  }
  out->push_back('[');
  bool first = true;
  for (const char c : Bytes(token.token)) {
    if (!first) out->push_back(',');
    first = false;
    AppendNumber(static_cast<unsigned char>(c), out);
  }
  out->push_back(']');
}

void LogprobsText::AppendChat(const std::vector<TokenOutput>& tokens, std::string* out) const {
  out->push_back('[');
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i != 0) out->push_back(',');
    AppendOne(tokens[i].logprob.value_or(TokenLogprob{tokens[i].token, 0, 0}), out);
    out->append(",\"top_logprobs\":[");
    const size_t count = std::min(tokens[i].top.size(), static_cast<size_t>(top_));
    for (size_t k = 0; k < count; ++k) {
      if (k != 0) out->push_back(',');
      AppendOne(tokens[i].top[k], out);
      out->push_back('}');
    }
    out->append("]}");
  }
  out->push_back(']');
}

void LogprobsText::AppendLegacy(const std::vector<TokenOutput>& tokens, size_t of_prompt, TextOffsets* offset,
                                std::string* out) const {
  std::string values, tops, offsets;
  out->append("{\"tokens\":[");
  for (size_t i = 0; i < tokens.size(); ++i) {
    const TokenOutput& token = tokens[i];
    for (std::string* list : {out, &values, &tops, &offsets}) {
      if (i != 0) list->push_back(',');
    }
    AppendString(LegacyShown(token.token), out);
    const bool is_special = tokenizer_->IsValid(token.token) && tokenizer_->IsSpecial(token.token);
    const bool has_text = i < of_prompt || !skip_special_ || !is_special;
    if (i > 0 && i == of_prompt) offset->EndText();
    AppendNumber(offset->Next(has_text ? Bytes(token.token) : std::string_view()), &offsets);
    if (!token.logprob) {  // the prompt's first
      values += "null";
      tops += "null";
      continue;
    }
    AppendLogprob(token.logprob->logprob, &values);
    // One object, so of several ids with one spelling the first is kept. The sampled one is always there.
    std::vector<std::string> names = {LegacyShown(token.token)};
    tops += '{';
    AppendString(names[0], &tops) += ':';
    AppendLogprob(token.logprob->logprob, &tops);
    const size_t count = std::min(token.top.size(), static_cast<size_t>(top_));
    for (size_t k = 0; k < count; ++k) {
      std::string name = LegacyShown(token.top[k].token);
      if (std::find(names.begin(), names.end(), name) != names.end()) continue;
      tops += ',';
      AppendString(name, &tops) += ':';
      AppendLogprob(token.top[k].logprob, &tops);
      names.push_back(std::move(name));
    }
    tops += '}';
  }
  out->append("],\"token_logprobs\":[").append(values).append("],\"top_logprobs\":[").append(tops);
  out->append("],\"text_offset\":[").append(offsets).append("]}");
}

void LogprobsText::AppendPrompt(const std::vector<TokenOutput>& tokens, std::string* out) const {
  out->push_back('[');
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i != 0) out->push_back(',');
    if (!tokens[i].logprob) {
      out->append("null");
      continue;
    }
    out->push_back('{');
    const auto append = [&](const TokenLogprob& token) {
      out->push_back('"');
      AppendNumber(token.token, out).append("\":{\"logprob\":");
      AppendLogprob(token.logprob, out).append(",\"rank\":");
      AppendNumber(token.rank, out).append(",\"decoded_token\":");
      AppendString(Shown(token.token), out).push_back('}');
    };
    append(*tokens[i].logprob);
    for (const TokenLogprob& token : tokens[i].top) {
      if (token.token == tokens[i].logprob->token) continue;
      out->push_back(',');
      append(token);
    }
    out->push_back('}');
  }
  out->push_back(']');
}

}  // namespace senko::api
