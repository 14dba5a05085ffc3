#include "api/completion_writer.h"

#include <utility>

#include "api/json_text.h"

namespace senko::api {
namespace {

class CompletionWriter : public AnswerWriter {
 public:
  CompletionWriter(std::shared_ptr<Exchange> exchange, CompletionStyle style)
      : exchange_(std::move(exchange)), style_(std::move(style)) {}

  void Scheduled(const Answer&) override {}

  void Pieces(const Answer& answer, int choice, std::vector<Piece>& pieces) override {
    if (!style_.stream) return;
    Begin(answer, choice);
    if (style_.echo_only) return;
    for (const Piece& piece : pieces) {
      std::string line = Head(answer, choice);
      AppendBody(piece.text, piece.tokens, 0, &places_[static_cast<size_t>(choice)].offsets, &line);
      Send(answer, line += ",\"finish_reason\":null,\"stop_reason\":null");
    }
  }

  void ChoiceEnded(const Answer& answer, int choice) override {
    if (!style_.stream) return;
    Begin(answer, choice);
    std::string line = Head(answer, choice) + "\"\",\"logprobs\":null";
    AppendFinish(answer.choices[static_cast<size_t>(choice)], &line);
    Send(answer, std::move(line));
  }

  void Done(const Answer& answer) override {
    if (!style_.stream) return Reply(answer);
    if (style_.include_usage) {
      std::string line = Envelope(answer) + "],\"usage\":";
      AppendUsage(UsageOf(answer), &line) += '}';
      exchange_->Event(std::move(line));
    }
    exchange_->Event("[DONE]");
    exchange_->EndEvents();
  }

  void Failed(const Answer&, const ErrorReply& error) override {
    if (!style_.stream) return ReplyError(*exchange_, error, ErrorStyle::kOpenAi);
    exchange_->Event(ErrorBody(error, ErrorStyle::kOpenAi));
    exchange_->Event("[DONE]");
    exchange_->EndEvents();
  }

 private:
  std::string Envelope(const Answer& answer) const {
    std::string line = "{\"id\":";
    AppendString(answer.id, &line) += ",\"object\":\"text_completion\",\"created\":";
    AppendNumber(answer.created, &line) += ",\"model\":";
    return AppendString(answer.model, &line) += ",\"choices\":[";
  }
  std::string Head(const Answer& answer, int choice) {
    if (envelope_.empty()) envelope_ = Envelope(answer);
    std::string line = envelope_ + "{\"index\":";
    return AppendNumber(choice, &line) += ",\"text\":";
  }

  // The token drawn for echo_only is nobody's.
  AnswerUsage UsageOf(const Answer& answer) const {
    AnswerUsage usage = answer.usage;
    if (style_.echo_only) usage.completion_tokens = 0;
    return usage;
  }

  // `line` ends inside its choice.
  void Send(const Answer& answer, std::string line) {
    line += "}]";
    if (style_.continuous_usage) {
      AppendUsage(UsageOf(answer), &(line += ",\"usage\":"));
    } else if (style_.include_usage) {
      line += ",\"usage\":null";
    }
    line += '}';
    exchange_->Event(std::move(line));
  }

  // The text and its logprobs.
  void AppendBody(std::string_view text, const std::vector<TokenOutput>& tokens, size_t of_prompt, TextOffsets* offset,
                  std::string* out) const {
    AppendString(text, out).append(",\"logprobs\":");
    if (style_.logprobs) {
      style_.logprobs->AppendLegacy(tokens, of_prompt, offset, out);
    } else {
      out->append("null");
    }
  }

  void AppendFinish(const ChoiceRecord& record, std::string* out) const {
    // Nothing was cut short where nothing was wanted.
    out->append(",\"finish_reason\":");
    AppendString(style_.echo_only ? "length" : EndingName(*record.ending), out).append(",\"stop_reason\":");
    if (record.stop) {
      AppendString(*record.stop, out);
    } else if (record.stop_token) {
      AppendNumber(*record.stop_token, out);
    } else {
      out->append("null");
    }
  }

  // Echoed prompts come before anything else of their choice.
  void Begin(const Answer& answer, int choice) {
    places_.resize(answer.choices.size());
    Place& place = places_[static_cast<size_t>(choice)];
    if (std::exchange(place.begun, true)) return;
    if (!style_.echo) return;
    const size_t prompt = static_cast<size_t>(choice / style_.per_prompt);
    std::string line = Head(answer, choice);
    const std::vector<TokenOutput>& tokens = answer.prompt_logprobs[prompt];
    AppendBody(style_.prompts[prompt], tokens, tokens.size(), &place.offsets, &line);
    place.offsets.EndText();
    Send(answer, line += ",\"finish_reason\":null,\"stop_reason\":null");
  }

  void Reply(const Answer& answer) {
    std::string body = Envelope(answer);
    for (size_t i = 0; i < answer.choices.size(); ++i) {
      const ChoiceRecord& record = answer.choices[i];
      const size_t prompt = i / static_cast<size_t>(style_.per_prompt);
      std::string text;
      std::vector<TokenOutput> tokens;
      if (style_.echo) {
        text = style_.prompts[prompt];
        tokens = answer.prompt_logprobs[prompt];
      }
      const size_t of_prompt = tokens.size();
      if (!style_.echo_only) {
        text += record.content;
        tokens.insert(tokens.end(), record.content_tokens.begin(), record.content_tokens.end());
      }
      body += i == 0 ? "{\"index\":" : ",{\"index\":";
      AppendNumber(static_cast<int64_t>(i), &body) += ",\"text\":";
      TextOffsets offset;
      AppendBody(text, tokens, of_prompt, &offset, &body);
      AppendFinish(record, &body);
      if (style_.prompt_logprobs) {
        body += ",\"prompt_logprobs\":";
        style_.prompt_logprobs->AppendPrompt(answer.prompt_logprobs[prompt], &body);
      }
      body += '}';
    }
    body += "],\"usage\":";
    AppendUsage(UsageOf(answer), &body) += '}';
    exchange_->Reply(200, "application/json", std::move(body));
  }

  std::shared_ptr<Exchange> exchange_;
  CompletionStyle style_;
  std::string envelope_;
  struct Place {
    bool begun = false;  // its first chunk has been sent
    TextOffsets offsets;
  };
  std::vector<Place> places_;  // of the choices
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeCompletionWriter(std::shared_ptr<Exchange> exchange, CompletionStyle style) {
  return std::make_unique<CompletionWriter>(std::move(exchange), std::move(style));
}

}  // namespace senko::api
