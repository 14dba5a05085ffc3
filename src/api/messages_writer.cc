#include "api/messages_writer.h"

#include <vector>

#include "api/json_text.h"

namespace senko::api {
namespace {

class MessagesWriter : public AnswerWriter {
 public:
  MessagesWriter(std::shared_ptr<Exchange> exchange, MessagesStyle style)
      : exchange_(std::move(exchange)), style_(std::move(style)) {}

  void Scheduled(const Answer& answer) override { Begin(answer); }

  void Pieces(const Answer& answer, int, std::vector<Piece>& pieces) override {
    Begin(answer);
    for (const Piece& piece : pieces) {
      switch (piece.kind) {
        case Piece::Kind::kReasoning:
          if (style_.show_thinking) Delta(Block::kThinking, piece.text);
          break;
        case Piece::Kind::kContent:
          Delta(Block::kText, piece.text);
          break;
        case Piece::Kind::kToolCallBegin:
          Open(Block::kTool, answer.choices[0].calls[static_cast<size_t>(piece.call)].id, piece.text);
          break;
        case Piece::Kind::kToolArguments:
          Delta(Block::kTool, piece.text);
          break;
        case Piece::Kind::kToolCallEnd:
          Close();
          break;
      }
    }
  }

  void ChoiceEnded(const Answer& answer, int) override {
    Begin(answer);
    Close();
  }

  void Done(const Answer& answer) override {
    if (!style_.stream) {
      std::string body = Head(answer);
      for (size_t i = 0; i < blocks_.size(); ++i) body.append(i == 0 ? "" : ",").append(blocks_[i]);
      body += "],";
      AppendStop(answer, &body);
      AppendUsage(answer, answer.usage.completion_tokens, &(body += ','));
      exchange_->Reply(200, "application/json", std::move(body += '}'));
      return;
    }
    std::string line = "{\"type\":\"message_delta\",\"delta\":{";
    AppendStop(answer, &line);
    AppendUsage(answer, answer.usage.completion_tokens, &(line += "},"));
    exchange_->Event(std::move(line += '}'), "message_delta");
    exchange_->Event("{\"type\":\"message_stop\"}", "message_stop");
    exchange_->EndEvents();
  }

  void Failed(const Answer&, const ErrorReply& error) override {
    if (!style_.stream) return ReplyError(*exchange_, error, ErrorStyle::kAnthropic);
    exchange_->Event(ErrorBody(error, ErrorStyle::kAnthropic), "error");
    exchange_->EndEvents();
  }

 private:
  enum class Block { kNone, kThinking, kText, kTool };

  static void AppendStop(const Answer& answer, std::string* out) {
    const ChoiceRecord& record = answer.choices[0];
    std::string_view reason = "end_turn";
    if (record.ending == Ending::kLength) reason = "max_tokens";
    if (record.ending == Ending::kToolCalls) reason = "tool_use";
    if (record.stop) reason = "stop_sequence";
    AppendString(reason, &out->append("\"stop_reason\":")).append(",\"stop_sequence\":");
    record.stop ? AppendString(*record.stop, out) : out->append("null");
  }

  // Anthropic counts tokens read from the cache apart from the others.
  static void AppendUsage(const Answer& answer, int64_t output_tokens, std::string* out) {
    const AnswerUsage& usage = answer.usage;
    AppendNumber(usage.prompt_tokens - usage.cached_tokens, &out->append("\"usage\":{\"input_tokens\":"));
    AppendNumber(usage.cached_tokens, &out->append(",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":"));
    AppendNumber(output_tokens, &out->append(",\"output_tokens\":")).push_back('}');
  }

  static std::string Head(const Answer& answer) {
    std::string out = "{\"id\":";
    AppendString(answer.id, &out) += ",\"type\":\"message\",\"role\":\"assistant\",\"model\":";
    return AppendString(answer.model, &out) += ",\"content\":[";
  }

  void Begin(const Answer& answer) {
    if (begun_) return;
    begun_ = true;
    if (!style_.stream) return;
    std::string line = "{\"type\":\"message_start\",\"message\":" + Head(answer);
    line += "],\"stop_reason\":null,\"stop_sequence\":null,";
    AppendUsage(answer, 0, &line);
    exchange_->Event(std::move(line += "}}"), "message_start");
    exchange_->Event("{\"type\":\"ping\"}", "ping");
  }

  void Open(Block block, const std::string& id = {}, const std::string& name = {}) {
    Close();
    block_ = block;
    id_ = id;
    name_ = name;
    text_.clear();
    if (!style_.stream) return;
    std::string line = "{\"type\":\"content_block_start\",\"index\":";
    AppendNumber(index_, &line) += ",\"content_block\":";
    AppendBlock("{}", &line) += '}';
    exchange_->Event(std::move(line), "content_block_start");
  }

  // The block as it stands; `input` is a tool's, as JSON.
  std::string& AppendBlock(std::string_view input, std::string* out) const {
    switch (block_) {
      case Block::kThinking:
        AppendString(text_, &out->append("{\"type\":\"thinking\",\"thinking\":")).append(",\"signature\":\"\"}");
        break;
      case Block::kText:
        AppendString(text_, &out->append("{\"type\":\"text\",\"text\":")).append("}");
        break;
      default:
        AppendString(id_, &out->append("{\"type\":\"tool_use\",\"id\":"));
        AppendString(name_, &out->append(",\"name\":")).append(",\"input\":").append(input).append("}");
    }
    return *out;
  }

  void Delta(Block block, const std::string& text) {
    if (block_ != block) Open(block);
    if (!style_.stream) {
      text_ += text;
      return;
    }
    if (text.empty()) return;
    std::string line = "{\"type\":\"content_block_delta\",\"index\":";
    AppendNumber(index_, &line) += ",\"delta\":{\"type\":";
    line += block == Block::kThinking ? "\"thinking_delta\",\"thinking\":"
            : block == Block::kText   ? "\"text_delta\",\"text\":"
                                      : "\"input_json_delta\",\"partial_json\":";
    AppendString(text, &line) += "}}";
    exchange_->Event(std::move(line), "content_block_delta");
  }

  void Close() {
    if (block_ == Block::kNone) return;
    if (style_.stream) {
      std::string line = "{\"type\":\"content_block_stop\",\"index\":";
      exchange_->Event(AppendNumber(index_, &line) += '}', "content_block_stop");
    } else {
      std::string block;
      blocks_.push_back(AppendBlock(text_, &block));
    }
    ++index_;
    block_ = Block::kNone;
  }

  std::shared_ptr<Exchange> exchange_;
  MessagesStyle style_;
  bool begun_ = false;
  Block block_ = Block::kNone;
  int64_t index_ = 0;
  std::string id_, name_;
  std::string text_;                 // of the open block; kept for whole answers only
  std::vector<std::string> blocks_;  // closed, for whole answers
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeMessagesWriter(std::shared_ptr<Exchange> exchange, MessagesStyle style) {
  return std::make_unique<MessagesWriter>(std::move(exchange), std::move(style));
}

}  // namespace senko::api
