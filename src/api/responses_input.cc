#include "api/responses_input.h"

#include "api/message_fields.h"
#include "text/turn_parser.h"

namespace senko::api {
namespace {

// How far an assistant's turn has come; an item that would go back begins a new one.
enum class Stage { kNone, kReasoning, kContent, kCalls };

class InputReader {
 public:
  std::vector<text::Message> Take() { return std::move(messages_); }

  void Add(const Json& item, const std::string& path) {
    Fields fields(item, path);
    const std::string type = fields.String("type").value_or("message");
    if (type == "message") {
      AddMessage(&fields, path);
    } else if (type == "function_call") {
      AddCall(&fields);
    } else if (type == "function_call_output") {
      AddOutput(&fields, path);
    } else if (type == "reasoning") {
      AddReasoning(&fields, path);
    } else {
      fields.Fail("type", "must be message, function_call, function_call_output or reasoning", ErrorCode::kUnsupported);
    }
    fields.Accept({"id", "status"});
    fields.Finish();
  }

 private:
  // The assistant message that the next item of `stage` belongs to.
  text::Message* Turn(Stage stage) {
    const bool goes_on = stage_ != Stage::kNone && (stage > stage_ || (stage == stage_ && stage == Stage::kCalls));
    if (!goes_on) {
      messages_.emplace_back();
      messages_.back().role = text::Role::kAssistant;
    }
    stage_ = stage;
    return &messages_.back();
  }

  void AddMessage(Fields* fields, const std::string& path) {
    const std::string role = fields->String("role").value_or("");
    const Json* content = fields->Find("content");
    fields->Accept({"phase"});
    if (role == "assistant") {
      Turn(Stage::kContent)->content = ReadContent(content, path + ".content", "", {"output_text", "refusal", "text"});
      return;
    }
    text::Message message;
    if (role == "system" || role == "developer") {
      message.role = text::Role::kSystem;
    } else if (role != "user") {
      fields->Fail("role", "must be user, assistant, system or developer");
    }
    message.content = ReadContent(content, path + ".content", kPartSeparator, {"input_text", "text"});
    Push(std::move(message));
  }

  void AddCall(Fields* fields) {
    text::ToolCall call;
    call.id = fields->String("call_id").value_or("");
    call.name = fields->String("name", text::kMaxCallNameBytes).value_or("");
    if (call.name.empty()) fields->Fail("name", "must not be empty");
    call.arguments = fields->String("arguments").value_or("{}");
    if (call.arguments.empty()) call.arguments = "{}";
    Turn(Stage::kCalls)->tool_calls.push_back(std::move(call));
  }

  void AddOutput(Fields* fields, const std::string& path) {
    text::Message message;
    message.role = text::Role::kTool;
    message.tool_call_id = fields->String("call_id");
    message.content =
        ReadContent(fields->Find("output"), path + ".output", kPartSeparator, {"input_text", "output_text", "text"});
    Push(std::move(message));
  }

  // Our own items carry their text as content; those of others may have a summary alone.
  void AddReasoning(Fields* fields, const std::string& path) {
    const Json* content = fields->Find("content");
    const Json* summary = fields->Find("summary");
    std::string text = ReadContent(content, path + ".content", "\n\n", {"reasoning_text", "text"});
    const std::string short_text = ReadContent(summary, path + ".summary", "\n\n", {"summary_text"});
    if (text.empty()) text = short_text;
    fields->Refuse({"encrypted_content"});
    Turn(Stage::kReasoning)->reasoning = std::move(text);
  }

  void Push(text::Message message) {
    messages_.push_back(std::move(message));
    stage_ = Stage::kNone;
  }

  std::vector<text::Message> messages_;
  Stage stage_ = Stage::kNone;
};

}  // namespace

std::vector<text::Message> ReadResponsesInput(Fields* fields) {
  const Json* input = fields->Find("input");
  if (input == nullptr) fields->Fail("input", "must be a string or a list of items");
  if (input->is_string()) {
    text::Message message;
    message.content = input->get<std::string>();
    return {message};
  }
  if (!input->is_array() || input->empty()) fields->Fail("input", "must be a string or a list of at least one item");
  InputReader reader;
  for (size_t i = 0; i < input->size(); ++i) reader.Add((*input)[i], Indexed("input", i));
  return reader.Take();
}

}  // namespace senko::api
