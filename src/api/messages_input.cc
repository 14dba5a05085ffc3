#include "api/messages_input.h"

#include "api/message_fields.h"
#include "text/turn_parser.h"

namespace senko::api {
namespace {

class MessageReader {
 public:
  std::vector<text::Message> Take() { return std::move(messages_); }

  void AddSystem(const Json* system) {
    if (system == nullptr) return;
    Push(text::Role::kSystem, ReadContent(system, "system", kPartSeparator, {"text"}));
  }

  void Add(const Json& value, const std::string& path, bool is_last) {
    Fields fields(value, path);
    const std::string role = fields.String("role").value_or("");
    const Json* content = fields.Find("content");
    if (content == nullptr) fields.Fail("content", "must be a string or a list of blocks");
    fields.Finish();
    if (role == "user") {
      AddUser(*content, path + ".content");
    } else if (role == "assistant") {
      AddAssistant(*content, path + ".content");
      messages_.back().prefix = is_last;
      if (is_last && !messages_.back().tool_calls.empty()) {
        fields.Fail("content", "must not end the conversation with a tool_use: its result comes next");
      }
    } else {
      fields.Fail("role", "must be user or assistant");
    }
  }

 private:
  text::Message& Push(text::Role role, std::string content) {
    text::Message message;
    message.role = role;
    message.content = std::move(content);
    return messages_.emplace_back(std::move(message));
  }

  static const Json::array_t& Blocks(const Json& content, const std::string& path) {
    if (!content.is_array()) {
      throw RequestError(ErrorCode::kInvalidArgument, path + " must be a string or a list of blocks", path);
    }
    return content.get_ref<const Json::array_t&>();
  }

  static std::string Text(Fields* block) {
    const auto text = block->String("text");
    if (!text) block->Fail("text", "must be a string");
    block->Refuse({"citations"});
    return *text;
  }

  // Text blocks next to each other are the parts of one message.
  void AddUser(const Json& content, const std::string& path) {
    if (content.is_string()) {
      Push(text::Role::kUser, content.get<std::string>());
      return;
    }
    bool in_text = false;
    const Json::array_t& blocks = Blocks(content, path);
    if (blocks.empty()) throw RequestError(ErrorCode::kInvalidArgument, path + " must not be empty", path);
    for (size_t i = 0; i < blocks.size(); ++i) {
      const std::string place = Indexed(path, i);
      Fields block(blocks[i], place);
      const std::string type = block.String("type").value_or("");
      block.Accept({"cache_control"});
      if (type == "text") {
        const std::string text = Text(&block);
        if (in_text) {
          messages_.back().content.append(kPartSeparator).append(text);
        } else {
          Push(text::Role::kUser, text);
        }
        in_text = true;
      } else if (type == "tool_result") {
        const auto id = block.String("tool_use_id");
        block.Bool("is_error");  // the result's own words say so
        Push(text::Role::kTool, ReadContent(block.Find("content"), place + ".content", kPartSeparator, {"text"}))
            .tool_call_id = id;
        in_text = false;
      } else {
        block.Fail("type", "must be text or tool_result: only text is read here", ErrorCode::kUnsupported);
      }
      block.Finish();
    }
  }

  void AddAssistant(const Json& content, const std::string& path) {
    text::Message& message = Push(text::Role::kAssistant, {});
    if (content.is_string()) {
      message.content = content.get<std::string>();
      return;
    }
    const Json::array_t& blocks = Blocks(content, path);
    for (size_t i = 0; i < blocks.size(); ++i) {
      Fields block(blocks[i], Indexed(path, i));
      const std::string type = block.String("type").value_or("");
      block.Accept({"cache_control"});
      if (type == "text") {
        message.content += Text(&block);
      } else if (type == "thinking") {
        message.reasoning += block.String("thinking").value_or("");
        block.Accept({"signature"});
      } else if (type == "tool_use") {
        text::ToolCall call;
        call.id = block.String("id").value_or("");
        call.name = block.String("name", text::kMaxCallNameBytes).value_or("");
        if (call.name.empty()) block.Fail("name", "must not be empty");
        const Json* input = block.Object("input");
        call.arguments = input == nullptr ? "{}" : DumpJson(*input);
        block.Accept({"caller"});
        message.tool_calls.push_back(std::move(call));
      } else {
        block.Fail("type", "must be text, thinking or tool_use", ErrorCode::kUnsupported);
      }
      block.Finish();
    }
  }

  std::vector<text::Message> messages_;
};

}  // namespace

std::vector<text::Message> ReadAnthropicMessages(Fields* fields) {
  MessageReader reader;
  reader.AddSystem(fields->Find("system"));
  const Json::array_t* messages = fields->Array("messages");
  if (messages == nullptr || messages->empty()) fields->Fail("messages", "must be a list of at least one message");
  for (size_t i = 0; i < messages->size(); ++i) {
    reader.Add((*messages)[i], Indexed("messages", i), i + 1 == messages->size());
  }
  return reader.Take();
}

}  // namespace senko::api
