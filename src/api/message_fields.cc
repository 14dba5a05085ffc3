#include "api/message_fields.h"

#include <algorithm>

#include "api/tool_fields.h"
#include "text/turn_parser.h"

namespace senko::api {
namespace {

std::optional<text::Role> RoleOf(std::string_view name) {
  if (name == "system" || name == "developer") return text::Role::kSystem;
  if (name == "user") return text::Role::kUser;
  if (name == "assistant") return text::Role::kAssistant;
  if (name == "tool") return text::Role::kTool;
  if (name == "latest_reminder") return text::Role::kLatestReminder;
  return std::nullopt;
}

text::ToolCall ReadCall(const Json& value, const std::string& path) {
  text::ToolCall call;
  Fields fields(value, path);
  call.id = fields.String("id").value_or("");
  if (fields.String("type").value_or("function") != "function") {
    fields.Fail("type", "must be \"function\"", ErrorCode::kUnsupported);
  }
  fields.Accept({"index"});
  const Json* function = fields.Object("function");
  if (function == nullptr) fields.Fail("function", "must be there");
  fields.Finish();
  Fields inner(*function, path + ".function");
  call.name = inner.String("name", text::kMaxCallNameBytes).value_or("");
  if (call.name.empty()) inner.Fail("name", "must not be empty");
  // Some clients parse the arguments and send the object.
  const Json* arguments = inner.Find("arguments");
  if (arguments != nullptr && arguments->is_object()) {
    call.arguments = DumpJson(*arguments);
  } else if (arguments != nullptr) {
    call.arguments = *inner.String("arguments");
  }
  if (call.arguments.empty()) call.arguments = "{}";
  inner.Finish();
  return call;
}

void ReadAssistant(Fields* fields, const std::string& path, text::Message* message) {
  const std::string reasoning = fields->String("reasoning_content").value_or("");
  message->reasoning = fields->String("reasoning").value_or("");
  if (message->reasoning.empty()) {
    message->reasoning = reasoning;
  } else if (!reasoning.empty() && reasoning != message->reasoning) {
    fields->Fail("reasoning", "and reasoning_content say different things; send one");
  }
  if (const Json::array_t* calls = fields->Array("tool_calls")) {
    for (size_t i = 0; i < calls->size(); ++i) {
      message->tool_calls.push_back(ReadCall((*calls)[i], Indexed(path + ".tool_calls", i)));
    }
  }
  message->prefix = fields->Bool("prefix").value_or(false);
  fields->Refuse({"audio", "function_call"});
  fields->Accept({"annotations"});  // of our own answers, empty
  const std::string refusal = fields->String("refusal").value_or("");
  if (message->content.empty()) message->content = refusal;
}

}  // namespace

std::string ReadContent(const Json* content, const std::string& path, std::string_view separator,
                        std::initializer_list<std::string_view> types) {
  if (content == nullptr) return {};
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) {
    throw RequestError(ErrorCode::kInvalidArgument, path + " must be a string or a list of text parts", path);
  }
  std::string text;
  bool first = true;
  for (size_t i = 0; i < content->size(); ++i) {
    Fields part((*content)[i], Indexed(path, i));
    const std::string type = part.String("type").value_or("");
    if (std::find(types.begin(), types.end(), type) == types.end()) {
      part.Fail("type", "must be \"" + std::string(*types.begin()) + "\": only text is read here",
                ErrorCode::kUnsupported);
    }
    const std::string_view member = type == "refusal" ? "refusal" : "text";
    const auto words = part.String(member);
    if (!words) part.Fail(member, "must be a string");
    part.Accept({"cache_control", "annotations", "logprobs"});
    part.Finish();
    if (!first) text += separator;
    first = false;
    text += *words;
  }
  return text;
}

std::vector<text::Message> ReadChatMessages(const Json::array_t& list) {
  std::vector<text::Message> messages;
  messages.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string path = Indexed("messages", i);
    Fields fields(list[i], path);
    const auto role = RoleOf(fields.String("role").value_or(""));
    if (!role) fields.Fail("role", "must be system, developer, user, assistant, tool or latest_reminder");
    text::Message message;
    message.role = *role;
    const bool is_assistant = *role == text::Role::kAssistant;
    message.content =
        ReadContent(fields.Find("content"), path + ".content", is_assistant ? "" : kPartSeparator, {"text", "refusal"});
    fields.Accept({"name"});  // the template has no place for it
    if (is_assistant) ReadAssistant(&fields, path, &message);
    if (*role == text::Role::kTool) message.tool_call_id = fields.String("tool_call_id");
    if (*role == text::Role::kSystem) {
      if (const Json::array_t* tools = fields.Array("tools", kMaxTools)) {
        message.tools = ReadChatToolList(*tools, path + ".tools");
      }
    }
    fields.Finish();
    messages.push_back(std::move(message));
  }
  return messages;
}

}  // namespace senko::api
