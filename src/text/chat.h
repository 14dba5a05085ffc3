// The V4.1 chat encoding: a conversation to a prompt (model.md 7.2 to 7.4). Its inverse is turn_parser.h.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/prompt.h"
#include "text/tools_prompt.h"

namespace senko::text {

enum class Role { kSystem, kUser, kAssistant, kTool, kLatestReminder };
enum class ToolChoice {
  kAuto,
  kNone,      // the tools are not shown
  kRequired,  // the answer begins inside a calls block, which the prompt opens
};

struct ToolDefinition {
  std::string name;
  std::string description;
  Json parameters;  // JSON schema; null if there is none
};

struct ToolCall {
  std::string id;  // pairs a call with its result; not rendered
  std::string name;
  std::string arguments;  // JSON object text; anything else is passed on as one string parameter "arguments"
};

struct Message {
  Role role = Role::kUser;
  std::string content;
  std::string reasoning;                    // assistant
  std::vector<ToolCall> tool_calls;         // assistant
  bool prefix = false;                      // assistant, last message: the answer continues this text
  std::optional<std::string> tool_call_id;  // tool
  std::vector<ToolDefinition> tools;        // system: schemas announced from here on
  std::string task;                         // "action", "query", ...: the turn asks for that classification instead
  // assistant: what was sampled for this turn behind its header, without EOS. Rendered as these very ids wherever the
  // turn's header is the one it was sampled behind, so that the prompt goes on as it went then.
  std::vector<int32_t> sampled_ids;
  bool sampled_thinking = false;  // that header was <think>
};

inline constexpr int kDefaultEffort = 75;

struct Conversation {
  std::vector<Message> messages;
  bool thinking = true;         // false is the chat mode
  int effort = kDefaultEffort;  // 1 to 100; rendered in thinking mode only
  bool drop_thinking = true;    // leaves out the reasoning of recorded turns; off whenever tools are shown
  std::vector<ToolDefinition> tools;
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string required_tool;            // with kRequired: the prompt opens a call of this function, too (InvokeOpening)
  std::optional<Json> response_format;  // shown to the model as it is: {"type": "json_object"} or a JSON schema
};

// "low" 50, "high" 75, "xhigh" 75, "max" 100, or an integer from 1 to 100. Errors: kInvalidArgument.
int ParseEffort(std::string_view name);

// Renders up to the point where the model continues. `tools_prompt` may be null if no tools are shown. Consecutive user
// messages and tool results form one user turn; tool results are put in the order of the calls they answer. Everything
// from the conversation is text, but for the grounding tokens in an assistant's recorded words.
// Errors: kInvalidArgument naming the field (messages[i].task, effort, ...); kUnsupported when tools are shown and
// `tools_prompt` is null.
Prompt RenderConversation(const Conversation& conversation, const ToolsPrompt* tools_prompt);

// How a call of `name` begins: a prompt with `required_tool` ends with it.
Prompt InvokeOpening(std::string_view name);

// One assistant turn as the model writes it after its header: [reasoning </think>] content [calls] EOS.
// `turn.prefix` leaves out EOS (and </think> if nothing follows the reasoning).
Prompt RenderAssistantTurn(const Message& turn, bool with_reasoning);

}  // namespace senko::text
