// Tools and the choice among them, as the three APIs write them.
#pragma once

#include <string>
#include <vector>

#include "api/fields.h"
#include "text/chat.h"

namespace senko::api {

inline constexpr size_t kMaxTools = 1024;

struct ToolFields {
  std::vector<text::ToolDefinition> tools;
  text::ToolChoice choice = text::ToolChoice::kAuto;
  std::string required;   // a function's name, with kRequired
  bool one_call = false;  // parallel_tool_calls: false
};

// `tools`, `tool_choice`, `parallel_tool_calls`.
// Chat: {"type": "function", "function": {"name", "description", "parameters"}}.
ToolFields ReadChatTools(Fields* fields);
// Responses: {"type": "function", "name", "description", "parameters"}.
ToolFields ReadResponsesTools(Fields* fields);
// Anthropic: {"name", "description", "input_schema"}; tool_choice {"type": "auto" | "any" | "tool" | "none"}.
ToolFields ReadAnthropicTools(Fields* fields);

// A list of chat tools, wherever it stands (a system message may bring some, too).
std::vector<text::ToolDefinition> ReadChatToolList(const Json::array_t& list, const std::string& path);

}  // namespace senko::api
