#include "api/tool_fields.h"

#include <algorithm>

namespace senko::api {
namespace {

constexpr size_t kMaxNameBytes = 128;

[[noreturn]] void Refuse(const std::string& path, const std::string& why,
                         ErrorCode code = ErrorCode::kInvalidArgument) {
  throw RequestError(code, path + " " + why, path);
}

// A name goes into a tag's attribute, so it holds nothing that could end it.
std::string ReadName(Fields* fields) {
  const auto name = fields->String("name");
  const bool plain =
      name && !name->empty() && name->size() <= kMaxNameBytes && std::all_of(name->begin(), name->end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
               c == '.' || c == ':' || c == '/';
      });
  if (!plain) fields->Fail("name", "must be 1 to 128 letters, digits and _-.:/");
  return *name;
}

// The model writes arguments freely: a schema is shown to it, never enforced.
void RefuseStrict(Fields* fields) {
  if (fields->Bool("strict").value_or(false)) {
    fields->Fail("strict", "is not supported here: arguments are not forced into the schema", ErrorCode::kUnsupported);
  }
}

text::ToolDefinition ReadFunction(Fields* fields, std::string_view schema_name) {
  text::ToolDefinition tool;
  tool.name = ReadName(fields);
  tool.description = fields->String("description").value_or("");
  if (const Json* schema = fields->Object(schema_name)) tool.parameters = *schema;
  RefuseStrict(fields);
  return tool;
}

void CheckType(Fields* fields, std::string_view wanted, bool required) {
  const auto type = fields->String("type");
  if (!type && required) fields->Fail("type", "must be \"" + std::string(wanted) + "\"");
  if (type && *type != wanted) {
    fields->Fail("type", "must be \"" + std::string(wanted) + "\"; no other tool runs here", ErrorCode::kUnsupported);
  }
}

void CheckNames(const std::vector<text::ToolDefinition>& tools) {
  for (size_t i = 0; i < tools.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      if (tools[i].name == tools[k].name) {
        Refuse(Indexed("tools", i), "has the same name as " + Indexed("tools", k));
      }
    }
  }
}

void Require(const std::string& name, ToolFields* out) {
  const bool known = std::any_of(out->tools.begin(), out->tools.end(),
                                 [&](const text::ToolDefinition& tool) { return tool.name == name; });
  if (!known) Refuse("tool_choice", "names a function that is not among the tools");
  out->choice = text::ToolChoice::kRequired;
  out->required = name;
}

void ReadChoiceWord(const std::string& word, ToolFields* out) {
  if (word == "auto") {
    out->choice = text::ToolChoice::kAuto;
  } else if (word == "none") {
    out->choice = text::ToolChoice::kNone;
  } else if (word == "required" || word == "any") {
    if (out->tools.empty()) Refuse("tool_choice", "asks for a call, but there are no tools");
    out->choice = text::ToolChoice::kRequired;
  } else {
    Refuse("tool_choice", "must be \"auto\", \"none\", \"required\" or name a function");
  }
}

ToolFields ReadOpenAiTools(Fields* fields, bool nested) {
  ToolFields out;
  if (const Json::array_t* list = fields->Array("tools", kMaxTools)) {
    if (nested) {
      out.tools = ReadChatToolList(*list, "tools");
    } else {
      for (size_t i = 0; i < list->size(); ++i) {
        Fields tool((*list)[i], Indexed("tools", i));
        CheckType(&tool, "function", true);
        out.tools.push_back(ReadFunction(&tool, "parameters"));
        tool.Finish();
      }
    }
    CheckNames(out.tools);
  }
  if (const Json* choice = fields->Find("tool_choice")) {
    if (choice->is_string()) {
      ReadChoiceWord(choice->get_ref<const std::string&>(), &out);
    } else {
      Fields named(*choice, "tool_choice");
      CheckType(&named, "function", true);
      if (nested) {
        const Json* function = named.Object("function");
        if (function == nullptr) named.Fail("function", "must be there");
        Fields inner(*function, "tool_choice.function");
        Require(inner.String("name").value_or(""), &out);
        inner.Finish();
      } else {
        Require(named.String("name").value_or(""), &out);
      }
      named.Finish();
    }
  }
  out.one_call = !fields->Bool("parallel_tool_calls").value_or(true);
  return out;
}

}  // namespace

std::vector<text::ToolDefinition> ReadChatToolList(const Json::array_t& list, const std::string& path) {
  std::vector<text::ToolDefinition> tools;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string item = Indexed(path, i);
    Fields tool(list[i], item);
    CheckType(&tool, "function", true);
    const Json* function = tool.Object("function");
    if (function == nullptr) tool.Fail("function", "must be there");
    RefuseStrict(&tool);
    tool.Accept({"cache_control"});
    tool.Finish();
    Fields inner(*function, item + ".function");
    tools.push_back(ReadFunction(&inner, "parameters"));
    inner.Finish();
  }
  return tools;
}

ToolFields ReadChatTools(Fields* fields) {
  fields->Refuse({"functions", "function_call"});
  return ReadOpenAiTools(fields, true);
}

ToolFields ReadResponsesTools(Fields* fields) { return ReadOpenAiTools(fields, false); }

ToolFields ReadAnthropicTools(Fields* fields) {
  ToolFields out;
  if (const Json::array_t* list = fields->Array("tools", kMaxTools)) {
    for (size_t i = 0; i < list->size(); ++i) {
      Fields tool((*list)[i], Indexed("tools", i));
      CheckType(&tool, "custom", false);
      out.tools.push_back(ReadFunction(&tool, "input_schema"));
      tool.Accept({"cache_control", "eager_input_streaming"});
      tool.Refuse({"defer_loading", "allowed_callers", "input_examples"});
      tool.Finish();
    }
    CheckNames(out.tools);
  }
  const Json* choice = fields->Object("tool_choice");
  if (choice == nullptr) return out;
  Fields named(*choice, "tool_choice");
  const std::string type = named.String("type").value_or("");
  if (type == "tool") {
    Require(named.String("name").value_or(""), &out);
  } else {
    ReadChoiceWord(type == "required" ? "" : type, &out);
  }
  out.one_call = named.Bool("disable_parallel_tool_use").value_or(false);
  named.Finish();
  return out;
}

}  // namespace senko::api
