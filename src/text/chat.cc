#include "text/chat.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "text/chat_messages.h"
#include "text/python_json.h"
#include "text/special_tokens.h"

namespace senko::text {
namespace {

std::string Schemas(const std::vector<ToolDefinition>& tools) {
  std::string lines;
  for (const ToolDefinition& tool : tools) {
    if (!lines.empty()) lines += '\n';
    lines += PythonJson(Json{{"name", tool.name}, {"description", tool.description}, {"parameters", tool.parameters}});
  }
  return lines;
}

// An assistant's recorded words: text, but for grounding tokens. One pass, however many of their spellings there are.
void RenderWords(std::string_view words, Prompt* prompt) {
  constexpr std::string_view kOpening = "<｜";  // what every one of them begins with
  size_t done = 0;
  for (size_t at = words.find(kOpening); at != std::string_view::npos; at = words.find(kOpening, at)) {
    const std::string_view rest = words.substr(at);
    const auto token =
        std::ranges::find_if(kGroundingTokens, [&](auto spelling) { return rest.starts_with(spelling); });
    if (token == std::end(kGroundingTokens)) {
      at += kOpening.size();
      continue;
    }
    prompt->Text(words.substr(done, at - done));
    prompt->Control(*token);
    done = at += token->size();
  }
  prompt->Text(words.substr(done));
}

void RenderTag(bool closing, std::string_view tag, Prompt* prompt) {
  prompt->Text(closing ? "</" : "<");
  prompt->Control(kDsml);
  prompt->Text(tag);
}

// The arguments as an object; text that is none becomes its only member.
Json ArgumentsOf(const ToolCall& call) {
  try {
    Json parsed = ParseJson(call.arguments, "arguments");
    if (parsed.is_object()) return parsed;
  } catch (const Error&) {
    // The model sees what was recorded, as a string.
  }
  return Json{{"arguments", call.arguments}};
}

void RenderCall(const ToolCall& call, Prompt* prompt) {
  prompt->Append(InvokeOpening(call.name));
  bool first = true;
  const Json arguments = ArgumentsOf(call);
  for (const auto& [key, value] : arguments.items()) {
    if (!first) prompt->Text("\n");
    first = false;
    RenderTag(false, kParameterTag, prompt);
    prompt->Text(" name=\"" + key + "\" string=\"" + (value.is_string() ? "true" : "false") + "\">");
    prompt->Text(value.is_string() ? value.get_ref<const std::string&>() : PythonJson(value));
    RenderTag(true, kParameterTag, prompt);
    prompt->Text(">");
  }
  prompt->Text("\n");
  RenderTag(true, kInvokeTag, prompt);
  prompt->Text(">");
}

void RenderCalls(const std::vector<ToolCall>& calls, Prompt* prompt) {
  prompt->Text("\n\n");
  RenderTag(false, kCallsTag, prompt);
  prompt->Text(">\n");
  for (size_t i = 0; i < calls.size(); ++i) {
    if (i != 0) prompt->Text("\n");
    RenderCall(calls[i], prompt);
  }
  prompt->Text("\n");
  RenderTag(true, kCallsTag, prompt);
  prompt->Text(">");
}

// Where the template's state lives while the messages are rendered in order.
class Renderer {
 public:
  Renderer(const Conversation& conversation, const ToolsPrompt* tools_prompt)
      : conversation_(conversation), tools_prompt_(tools_prompt) {
    shows_tools_ = conversation.tool_choice != ToolChoice::kNone && !conversation.tools.empty();
    if (shows_tools_ && tools_prompt == nullptr) {
      throw Error(ErrorCode::kUnsupported,
                  "tools: the wording of the tools block comes with the checkpoint; put its encoding/ folder or a "
                  "tools_prompt.txt beside tokenizer.json");
    }
    messages_ = ArrangeMessages(conversation.messages);
    if ((shows_tools_ || conversation.response_format) && messages_.front().role != Role::kSystem) {
      messages_.emplace(messages_.begin())->role = Role::kSystem;
    }
  }

  Prompt Run() {
    prompt_.Control(kBos);
    for (size_t i = 0; i < messages_.size(); ++i) RenderMessage(i);
    const Message& last = messages_.back();
    if (last.task.empty() && !last.prefix) Header(conversation_.thinking);
    if (conversation_.tool_choice == ToolChoice::kRequired && shows_tools_) {
      prompt_.Text("\n\n");
      RenderTag(false, kCallsTag, &prompt_);
      prompt_.Text(">\n");
      if (!conversation_.required_tool.empty()) prompt_.Append(InvokeOpening(conversation_.required_tool));
    }
    return std::move(prompt_);
  }

 private:
  void Header(bool thinks) {
    prompt_.Control(kAssistantToken);
    prompt_.Control(thinks ? kThinkOpen : kThinkClose);
  }

  void RenderMessage(size_t index) {
    const Message& message = messages_[index];
    if (index == 0 && (conversation_.thinking || message.role == Role::kSystem)) prompt_.Control(kSystemToken);
    if (index == 0 && conversation_.thinking) {
      prompt_.Text("Reasoning Effort: " + std::to_string(conversation_.effort) +
                   " (range 1-100, the higher the value, the more thorough the reasoning)\n\n");
    }
    switch (message.role) {
      case Role::kSystem:
        RenderSystem(index, message);
        break;
      case Role::kUser:
        UserTurn(index, message.content);
        break;
      case Role::kTool:
        UserTurn(index, "<tool_result>" + message.content + "</tool_result>");
        break;
      case Role::kLatestReminder:
        prompt_.Control(kLatestReminderToken);
        prompt_.Text(message.content);
        break;
      case Role::kAssistant:
        RenderAssistant(index, message);
        break;
    }
    if (!message.task.empty()) {
      if (message.task == "action") Header(conversation_.thinking);
      prompt_.Control("<｜" + message.task + "｜>");
    }
  }

  void RenderSystem(size_t index, const Message& message) {
    if (index > 0) prompt_.Control(kSystemToken);
    prompt_.Text(message.content);
    if (index == 0 && shows_tools_) {
      prompt_.Text("\n\n");
      tools_prompt_->Render(Schemas(conversation_.tools), &prompt_);
    }
    if (index == 0 && conversation_.response_format) {
      prompt_.Text("\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n" +
                   PythonJson(*conversation_.response_format));
    }
    if (!message.tools.empty()) prompt_.Text("\n\n### Updated Tool Schemas\n\n" + Schemas(message.tools));
  }

  void UserTurn(size_t index, std::string_view text) {
    const bool continues =
        index > 0 && (messages_[index - 1].role == Role::kUser || messages_[index - 1].role == Role::kTool);
    if (continues) {
      prompt_.Text("\n\n");
    } else {
      prompt_.Control(kUserToken);
    }
    prompt_.Text(text);
  }

  void RenderAssistant(size_t index, const Message& message) {
    if (index > 0 && !messages_[index - 1].task.empty()) {  // the answer to a task follows its token directly
      prompt_.Append(RenderAssistantTurn(message, false));
      return;
    }
    const bool keeps = !conversation_.drop_thinking || shows_tools_ || message.prefix;
    const bool with_reasoning = conversation_.thinking && index > 0 && keeps;
    Header(with_reasoning);
    if (!message.sampled_ids.empty() && message.sampled_thinking == with_reasoning && !message.prefix) {
      Message open = message;
      open.prefix = true;
      prompt_.Ids(message.sampled_ids, RenderAssistantTurn(open, with_reasoning).ToString());
      prompt_.Control(kEos);
      return;
    }
    prompt_.Append(RenderAssistantTurn(message, with_reasoning));
  }

  const Conversation& conversation_;
  const ToolsPrompt* tools_prompt_;
  bool shows_tools_;
  std::vector<Message> messages_;
  Prompt prompt_;
};

}  // namespace

int ParseEffort(std::string_view name) {
  if (name == "low") return 50;
  if (name == "high" || name == "xhigh") return 75;
  if (name == "max") return 100;
  int value = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), value);
  if (error == std::errc() && end == name.data() + name.size() && value >= 1 && value <= 100) return value;
  throw Error(ErrorCode::kInvalidArgument, "effort must be low, high, xhigh, max or an integer from 1 to 100");
}

Prompt RenderConversation(const Conversation& conversation, const ToolsPrompt* tools_prompt) {
  CheckConversation(conversation);
  return Renderer(conversation, tools_prompt).Run();
}

Prompt InvokeOpening(std::string_view name) {
  Prompt prompt;
  RenderTag(false, kInvokeTag, &prompt);
  prompt.Text(" name=\"" + std::string(name) + "\">\n");
  return prompt;
}

Prompt RenderAssistantTurn(const Message& turn, bool with_reasoning) {
  Prompt prompt;
  if (with_reasoning) {
    RenderWords(turn.reasoning, &prompt);
    if (!(turn.prefix && turn.content.empty() && turn.tool_calls.empty())) prompt.Control(kThinkClose);
  }
  RenderWords(turn.content, &prompt);
  if (!turn.tool_calls.empty()) RenderCalls(turn.tool_calls, &prompt);
  if (!turn.prefix) prompt.Control(kEos);
  return prompt;
}

}  // namespace senko::text
