#include "api/chat_writer.h"

#include "api/json_text.h"

namespace senko::api {
namespace {

std::string& AppendReasoning(std::string_view text, std::string* out) {
  out->append("\"reasoning_content\":");
  AppendString(text, out).append(",\"reasoning\":");
  return AppendString(text, out);
}

void AppendLogprobs(const std::optional<LogprobsText>& style, const std::vector<TokenOutput>& content,
                    const std::vector<TokenOutput>* reasoning, std::string* out) {
  if (!style) {
    out->append("null");
    return;
  }
  out->append("{\"content\":");
  style->AppendChat(content, out);
  out->append(",\"refusal\":null");
  if (reasoning != nullptr && !reasoning->empty()) {
    out->append(",\"reasoning_content\":");
    style->AppendChat(*reasoning, out);
  }
  out->push_back('}');
}

// finish_reason and what ended it, as vLLM tells.
void AppendFinish(const ChoiceRecord& record, std::string* out) {
  out->append(",\"finish_reason\":");
  AppendString(EndingName(*record.ending), out).append(",\"stop_reason\":");
  if (record.stop) {
    AppendString(*record.stop, out);
  } else if (record.stop_token) {
    AppendNumber(*record.stop_token, out);
  } else {
    out->append("null");
  }
}

class ChatStream : public AnswerWriter {
 public:
  ChatStream(std::shared_ptr<Exchange> exchange, ChatStyle style)
      : exchange_(std::move(exchange)), style_(std::move(style)) {}

  void Scheduled(const Answer&) override {}

  void Pieces(const Answer& answer, int choice, std::vector<Piece>& pieces) override {
    Begin(answer, choice);
    for (const Piece& piece : pieces) {
      if (piece.kind == Piece::Kind::kReasoning && !style_.include_reasoning) continue;
      if (piece.kind == Piece::Kind::kToolCallEnd) continue;
      std::string line = Head(choice);
      switch (piece.kind) {
        case Piece::Kind::kReasoning:
          AppendReasoning(piece.text, &line);
          break;
        case Piece::Kind::kContent:
          line += "\"content\":";
          AppendString(piece.text, &line);
          break;
        case Piece::Kind::kToolCallBegin:
          line += "\"tool_calls\":[{\"index\":";
          AppendNumber(piece.call, &line) += ",\"id\":";
          AppendString(answer.choices[static_cast<size_t>(choice)].calls[static_cast<size_t>(piece.call)].id, &line);
          line += ",\"type\":\"function\",\"function\":{\"name\":";
          AppendString(piece.text, &line) += ",\"arguments\":\"\"}}]";
          break;
        default:
          line += "\"tool_calls\":[{\"index\":";
          AppendNumber(piece.call, &line) += ",\"function\":{\"arguments\":";
          AppendString(piece.text, &line) += "}}]";
      }
      line += "},\"logprobs\":";
      const bool reasons = piece.kind == Piece::Kind::kReasoning;
      if (!style_.logprobs || piece.tokens.empty()) {
        line += "null";
      } else {
        AppendLogprobs(style_.logprobs, reasons ? std::vector<TokenOutput>() : piece.tokens,
                       reasons ? &piece.tokens : nullptr, &line);
      }
      line += ",\"finish_reason\":null";
      Send(answer, std::move(line));
    }
  }

  void ChoiceEnded(const Answer& answer, int choice) override {
    Begin(answer, choice);
    std::string line = Head(choice) + "},\"logprobs\":null";
    AppendFinish(answer.choices[static_cast<size_t>(choice)], &line);
    Send(answer, std::move(line));
  }

  void Done(const Answer& answer) override {
    if (style_.include_usage) {
      std::string line = Envelope(answer) + "],\"usage\":";
      AppendUsage(answer.usage, &line) += '}';
      exchange_->Event(std::move(line));
    }
    exchange_->Event("[DONE]");
    exchange_->EndEvents();
  }

  void Failed(const Answer&, const ErrorReply& error) override {
    exchange_->Event(ErrorBody(error, ErrorStyle::kOpenAi));
    exchange_->Event("[DONE]");
    exchange_->EndEvents();
  }

 private:
  const std::string& Envelope(const Answer& answer) {
    if (!envelope_.empty()) return envelope_;
    envelope_ = "{\"id\":";
    AppendString(answer.id, &envelope_) += ",\"object\":\"chat.completion.chunk\",\"created\":";
    AppendNumber(answer.created, &envelope_) += ",\"model\":";
    AppendString(answer.model, &envelope_) += ",\"choices\":[";
    begun_.resize(answer.choices.size());
    return envelope_;
  }

  // Up to the delta's first member.
  std::string Head(int choice) const {
    std::string line;
    line.reserve(envelope_.size() + 200);
    line.append(envelope_).append("{\"index\":");
    return AppendNumber(choice, &line).append(",\"delta\":{");
  }

  void Begin(const Answer& answer, int choice) {
    Envelope(answer);
    if (begun_[static_cast<size_t>(choice)]) return;
    begun_[static_cast<size_t>(choice)] = true;
    Send(answer, Head(choice) + "\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null");
  }

  // `line` ends inside its choice.
  void Send(const Answer& answer, std::string line) {
    line += "}]";
    if (style_.continuous_usage) {
      AppendUsage(answer.usage, &(line += ",\"usage\":"));
    } else if (style_.include_usage) {
      line += ",\"usage\":null";
    }
    line += '}';
    exchange_->Event(std::move(line));
  }

  std::shared_ptr<Exchange> exchange_;
  ChatStyle style_;
  std::string envelope_;
  std::vector<bool> begun_;
};

class ChatWhole : public AnswerWriter {
 public:
  ChatWhole(std::shared_ptr<Exchange> exchange, ChatStyle style)
      : exchange_(std::move(exchange)), style_(std::move(style)) {}

  void Scheduled(const Answer&) override {}
  void Pieces(const Answer&, int, std::vector<Piece>&) override {}
  void ChoiceEnded(const Answer&, int) override {}

  void Done(const Answer& answer) override {
    std::string body = "{\"id\":";
    AppendString(answer.id, &body) += ",\"object\":\"chat.completion\",\"created\":";
    AppendNumber(answer.created, &body) += ",\"model\":";
    AppendString(answer.model, &body) += ",\"choices\":[";
    for (size_t i = 0; i < answer.choices.size(); ++i) {
      if (i != 0) body += ',';
      AppendChoice(answer.choices[i], i, &body);
    }
    body += "],\"usage\":";
    AppendUsage(answer.usage, &body);
    if (style_.prompt_logprobs) {
      body += ",\"prompt_logprobs\":";
      style_.prompt_logprobs->AppendPrompt(answer.prompt_logprobs[0], &body);
    }
    exchange_->Reply(200, "application/json", std::move(body += '}'));
  }

  void Failed(const Answer&, const ErrorReply& error) override { ReplyError(*exchange_, error, ErrorStyle::kOpenAi); }

 private:
  void AppendChoice(const ChoiceRecord& record, size_t index, std::string* body) const {
    body->append("{\"index\":");
    AppendNumber(static_cast<int64_t>(index), body).append(",\"message\":{\"role\":\"assistant\",\"content\":");
    if (record.content.empty() && !record.calls.empty()) {
      body->append("null");
    } else {
      AppendString(record.content, body);
    }
    body->append(",\"refusal\":null");
    if (style_.include_reasoning && !record.reasoning.empty()) {
      body->push_back(',');
      AppendReasoning(record.reasoning, body);
    }
    if (!record.calls.empty()) body->append(",\"tool_calls\":[");
    for (size_t k = 0; k < record.calls.size(); ++k) {
      body->append(k == 0 ? "{\"id\":" : ",{\"id\":");
      AppendString(record.calls[k].id, body).append(",\"type\":\"function\",\"function\":{\"name\":");
      AppendString(record.calls[k].name, body).append(",\"arguments\":");
      AppendString(record.calls[k].arguments, body).append("}}");
    }
    body->append(record.calls.empty() ? "}" : "]}").append(",\"logprobs\":");
    AppendLogprobs(style_.logprobs, record.content_tokens,
                   style_.include_reasoning ? &record.reasoning_tokens : nullptr, body);
    AppendFinish(record, body);
    body->push_back('}');
  }

  std::shared_ptr<Exchange> exchange_;
  ChatStyle style_;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeChatWriter(std::shared_ptr<Exchange> exchange, ChatStyle style) {
  if (style.stream) return std::make_unique<ChatStream>(std::move(exchange), std::move(style));
  return std::make_unique<ChatWhole>(std::move(exchange), std::move(style));
}

}  // namespace senko::api
