#include "api/responses_writer.h"

#include <vector>

#include "api/ids.h"
#include "api/json_text.h"

namespace senko::api {
namespace {

class ResponsesWriter : public AnswerWriter {
 public:
  ResponsesWriter(std::shared_ptr<Exchange> exchange, ResponsesStyle style)
      : exchange_(std::move(exchange)), style_(std::move(style)) {}

  void Scheduled(const Answer& answer) override { Begin(answer); }

  void Pieces(const Answer& answer, int, std::vector<Piece>& pieces) override {
    Begin(answer);
    for (const Piece& piece : pieces) {
      switch (piece.kind) {
        case Piece::Kind::kReasoning:
          Text(Item::kReasoning, piece.text);
          break;
        case Piece::Kind::kContent:
          Text(Item::kMessage, piece.text);
          break;
        case Piece::Kind::kToolCallBegin:
          OpenCall(answer.choices[0].calls[static_cast<size_t>(piece.call)].id, piece.text);
          break;
        case Piece::Kind::kToolArguments:
          text_ += piece.text;
          Emit("response.function_call_arguments.delta", [&](std::string* out) {
            AppendPlace(out).append(",\"delta\":");
            AppendString(piece.text, out);
          });
          break;
        case Piece::Kind::kToolCallEnd:
          CloseItem(piece.cut ? "incomplete" : "completed");
          break;
      }
    }
  }

  void ChoiceEnded(const Answer& answer, int) override {
    Begin(answer);
    if (item_ == Item::kNone && output_.empty()) Text(Item::kMessage, "");
    CloseItem(IsCut(answer) ? "incomplete" : "completed");
  }

  void Done(const Answer& answer) override {
    const char* status = IsCut(answer) ? "incomplete" : "completed";
    if (!style_.stream) {
      exchange_->Reply(200, "application/json", Response(answer, status, nullptr));
      return;
    }
    Emit(IsCut(answer) ? "response.incomplete" : "response.completed",
         [&](std::string* out) { out->append(",\"response\":").append(Response(answer, status, nullptr)); });
    exchange_->EndEvents();
  }

  void Failed(const Answer& answer, const ErrorReply& error) override {
    if (!style_.stream) return ReplyError(*exchange_, error, ErrorStyle::kOpenAi);
    Begin(answer);
    Emit("response.failed",
         [&](std::string* out) { out->append(",\"response\":").append(Response(answer, "failed", &error)); });
    exchange_->EndEvents();
  }

 private:
  enum class Item { kNone, kReasoning, kMessage, kCall };

  static bool IsCut(const Answer& answer) { return answer.choices[0].ending == Ending::kLength; }

  template <typename Members>
  void Emit(std::string_view type, const Members& members) {
    if (!style_.stream) return;
    std::string line = "{\"type\":\"";
    line.append(type).append("\",\"sequence_number\":");
    AppendNumber(sequence_++, &line);
    members(&line);
    exchange_->Event(std::move(line += '}'), type);
  }

  void Begin(const Answer& answer) {
    if (begun_) return;
    begun_ = true;
    for (const char* type : {"response.created", "response.in_progress"}) {
      Emit(type,
           [&](std::string* out) { out->append(",\"response\":").append(Response(answer, "in_progress", nullptr)); });
    }
  }

  std::string Response(const Answer& answer, std::string_view status, const ErrorReply* error) const {
    std::string out = "{\"id\":";
    AppendString(answer.id, &out) += ",\"object\":\"response\",\"created_at\":";
    AppendNumber(answer.created, &out) += ",\"status\":";
    AppendString(status, &out) += ",\"background\":false,\"error\":";
    if (error == nullptr) {
      out += "null";
    } else {
      AppendString(error->code.empty() ? error->type : error->code, &(out += "{\"code\":"));
      AppendString(error->message, &(out += ",\"message\":")) += '}';
    }
    out += ",\"incomplete_details\":";
    out += status == "incomplete" ? "{\"reason\":\"max_output_tokens\"}" : "null";
    AppendString(answer.model, &(out += ",\"model\":")) += ",\"output\":[";
    for (size_t i = 0; i < output_.size(); ++i) out.append(i == 0 ? "" : ",").append(output_[i]);
    out += "],\"previous_response_id\":null,\"store\":false,\"truncation\":\"disabled\",\"usage\":";
    if (status == "in_progress") {
      out += "null";
    } else {
      const AnswerUsage& usage = answer.usage;
      AppendNumber(usage.prompt_tokens, &(out += "{\"input_tokens\":"));
      AppendNumber(usage.cached_tokens, &(out += ",\"input_tokens_details\":{\"cached_tokens\":"));
      AppendNumber(usage.completion_tokens, &(out += "},\"output_tokens\":"));
      AppendNumber(usage.reasoning_tokens, &(out += ",\"output_tokens_details\":{\"reasoning_tokens\":"));
      AppendNumber(usage.prompt_tokens + usage.completion_tokens, &(out += "},\"total_tokens\":")) += '}';
    }
    if (!style_.repeated.empty()) out.append(",").append(style_.repeated);
    return out += '}';
  }

  // Which item an event speaks of.
  std::string& AppendPlace(std::string* out) const {
    out->append(",\"item_id\":");
    AppendString(id_, out).append(",\"output_index\":");
    return AppendNumber(static_cast<int64_t>(output_.size()), out);
  }

  std::string Part() const {
    std::string part =
        item_ == Item::kReasoning ? "{\"type\":\"reasoning_text\",\"text\":" : "{\"type\":\"output_text\",\"text\":";
    AppendString(text_, &part);
    return part += item_ == Item::kReasoning ? "}" : ",\"annotations\":[],\"logprobs\":[]}";
  }

  // `content`: the message's or the reasoning's parts, as a list.
  std::string ItemObject(std::string_view status, std::string_view content) const {
    std::string out = "{\"id\":";
    AppendString(id_, &out);
    switch (item_) {
      case Item::kReasoning:
        out.append(",\"type\":\"reasoning\",\"summary\":[],\"encrypted_content\":null,\"content\":").append(content);
        break;
      case Item::kMessage:
        out.append(",\"type\":\"message\",\"role\":\"assistant\",\"content\":").append(content);
        break;
      default:
        AppendString(call_id_, &(out += ",\"type\":\"function_call\",\"call_id\":"));
        AppendString(name_, &(out += ",\"name\":"));
        AppendString(text_, &(out += ",\"arguments\":"));
    }
    return AppendString(status, &(out += ",\"status\":")) += '}';
  }

  void EmitItem(std::string_view type, const std::string& item) {
    Emit(type, [&](std::string* out) {
      out->append(",\"output_index\":");
      AppendNumber(static_cast<int64_t>(output_.size()), out).append(",\"item\":").append(item);
    });
  }
  void EmitPart(std::string_view type) {
    Emit(type, [&](std::string* out) { AppendPlace(out).append(",\"content_index\":0,\"part\":").append(Part()); });
  }

  void Open(Item item, std::string_view prefix) {
    CloseItem("completed");
    item_ = item;
    id_ = NewId(prefix);
    text_.clear();
  }

  void OpenCall(const std::string& call_id, const std::string& name) {
    Open(Item::kCall, "fc_");
    call_id_ = call_id;
    name_ = name;
    EmitItem("response.output_item.added", ItemObject("in_progress", ""));
  }

  void Text(Item item, const std::string& text) {
    if (item_ != item) {
      Open(item, item == Item::kReasoning ? "rs_" : "msg_");
      EmitItem("response.output_item.added", ItemObject("in_progress", "[]"));
      EmitPart("response.content_part.added");
    }
    if (text.empty()) return;
    text_ += text;
    const bool reasons = item == Item::kReasoning;
    Emit(reasons ? "response.reasoning_text.delta" : "response.output_text.delta", [&](std::string* out) {
      AppendPlace(out).append(",\"content_index\":0,\"delta\":");
      AppendString(text, out).append(reasons ? "" : ",\"logprobs\":[]");
    });
  }

  void CloseItem(std::string_view status) {
    if (item_ == Item::kNone) return;
    if (item_ == Item::kCall) {
      Emit("response.function_call_arguments.done", [&](std::string* out) {
        AppendString(name_, &AppendPlace(out).append(",\"name\":")).append(",\"arguments\":");
        AppendString(text_, out);
      });
    } else {
      const bool reasons = item_ == Item::kReasoning;
      Emit(reasons ? "response.reasoning_text.done" : "response.output_text.done", [&](std::string* out) {
        AppendPlace(out).append(",\"content_index\":0,\"text\":");
        AppendString(text_, out).append(reasons ? "" : ",\"logprobs\":[]");
      });
      EmitPart("response.content_part.done");
    }
    std::string item = ItemObject(status, item_ == Item::kCall ? std::string() : "[" + Part() + "]");
    EmitItem("response.output_item.done", item);
    output_.push_back(std::move(item));
    item_ = Item::kNone;
  }

  std::shared_ptr<Exchange> exchange_;
  ResponsesStyle style_;
  bool begun_ = false;
  int64_t sequence_ = 0;
  std::vector<std::string> output_;  // closed items
  Item item_ = Item::kNone;          // the open one; its place is output_.size()
  std::string id_, text_, call_id_, name_;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeResponsesWriter(std::shared_ptr<Exchange> exchange, ResponsesStyle style) {
  return std::make_unique<ResponsesWriter>(std::move(exchange), std::move(style));
}

}  // namespace senko::api
