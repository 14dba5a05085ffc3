// Drives the text room from tests: one JSON request a line in, one JSON answer a line out.
//   text_tool TOKENIZER.json [FOLDER with the wording of the tools block]
// {"op": "encode", "hex": bytes, "added": "all" | "none"}     -> {"ids": [...]}
// {"op": "decode", "ids": [...], "skip_special": bool}        -> {"text": whole, "streamed": [pieces]}
// {"op": "engram_map"}                                        -> {"map": [...]}
// {"op": "chat", "conversation": {...}}                       -> {"text": ..., "ids": [...]} or {"error":
// ...}
// {"op": "parse", "pieces": [...], "start": "reasoning" | "content" | "tool_calls"} -> {"reasoning",
// "content", "calls"}
#include <iostream>

#include "base/error.h"
#include "base/json.h"
#include "text/chat.h"
#include "text/detokenizer.h"
#include "text/engram_map.h"
#include "text/tokenizer.h"
#include "text/turn_parser.h"

namespace senko::text {
namespace {

std::string FromHex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

std::vector<ToolDefinition> Tools(const Json& list) {
  std::vector<ToolDefinition> tools;
  for (const Json& tool : list) {
    tools.push_back(
        {tool["name"], tool.value("description", ""), tool.contains("parameters") ? tool["parameters"] : Json()});
  }
  return tools;
}

Message ToMessage(const Json& json) {
  static const std::map<std::string, Role> roles = {{"system", Role::kSystem},
                                                    {"user", Role::kUser},
                                                    {"assistant", Role::kAssistant},
                                                    {"tool", Role::kTool},
                                                    {"latest_reminder", Role::kLatestReminder}};
  Message message;
  message.role = roles.at(json["role"]);
  message.content = json.value("content", "");
  message.reasoning = json.value("reasoning", "");
  message.prefix = json.value("prefix", false);
  message.task = json.value("task", "");
  if (json.contains("tool_call_id")) message.tool_call_id = json["tool_call_id"];
  if (json.contains("tools")) message.tools = Tools(json["tools"]);
  if (json.contains("tool_calls")) {
    for (const Json& call : json["tool_calls"])
      message.tool_calls.push_back({call["id"], call["name"], call["arguments"]});
  }
  return message;
}

Conversation ToConversation(const Json& json) {
  static const std::map<std::string, ToolChoice> choices = {
      {"auto", ToolChoice::kAuto}, {"none", ToolChoice::kNone}, {"required", ToolChoice::kRequired}};
  Conversation conversation;
  for (const Json& message : json["messages"]) conversation.messages.push_back(ToMessage(message));
  conversation.thinking = json.value("thinking", true);
  conversation.drop_thinking = json.value("drop_thinking", true);
  if (json.contains("effort")) conversation.effort = ParseEffort(json["effort"].get<std::string>());
  if (json.contains("tools")) conversation.tools = Tools(json["tools"]);
  conversation.tool_choice = choices.at(json.value("tool_choice", "auto"));
  if (json.contains("response_format")) conversation.response_format = json["response_format"];
  return conversation;
}

Json Parse(const Json& request) {
  const std::string start = request["start"];
  TurnParser parser(start == "reasoning" ? TurnStart::kReasoning
                    : start == "content" ? TurnStart::kContent
                                         : TurnStart::kToolCalls);
  std::vector<TurnEvent> events;
  for (const Json& piece : request["pieces"]) parser.Feed(FromHex(piece), &events);
  parser.Finish(&events);
  std::string reasoning, content;
  Json calls = Json::array();
  for (const TurnEvent& event : events) {
    switch (event.kind) {
      case TurnEvent::Kind::kReasoning:
        reasoning += event.text;
        break;
      case TurnEvent::Kind::kContent:
        content += event.text;
        break;
      case TurnEvent::Kind::kToolCallBegin:
        calls.push_back({{"name", event.text}, {"arguments", ""}});
        break;
      case TurnEvent::Kind::kToolArguments:
        calls[event.call]["arguments"] = calls[event.call]["arguments"].get<std::string>() + event.text;
        break;
      case TurnEvent::Kind::kToolCallEnd:
        break;
    }
  }
  return {{"reasoning", reasoning}, {"content", content}, {"calls", calls}, {"malformed", parser.malformed()}};
}

Json Answer(const Tokenizer& tokenizer, const ToolsPrompt* tools, const Json& request) {
  const std::string op = request["op"];
  if (op == "encode") {
    const auto added = request["added"] == "all" ? AddedTokens::kAll : AddedTokens::kNone;
    return {{"ids", tokenizer.Encode(FromHex(request["hex"]), added)}};
  }
  if (op == "decode") {
    const std::vector<int32_t> ids = request["ids"];
    const bool skip = request["skip_special"];
    Detokenizer detokenizer(tokenizer, skip);
    Json pieces = Json::array();
    for (const int32_t id : ids) pieces.push_back(detokenizer.Push(id));
    pieces.push_back(detokenizer.Finish());
    return {{"text", tokenizer.Decode(ids, skip)}, {"streamed", pieces}};
  }
  if (op == "engram_map") return {{"map", MakeEngramMap(tokenizer)}};
  if (op == "parse") return Parse(request);
  const Prompt prompt = RenderConversation(ToConversation(request["conversation"]), tools);
  return {{"text", prompt.ToString()}, {"ids", prompt.Encode(tokenizer)}};
}

int Main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: text_tool TOKENIZER.json [FOLDER]\n";
    return 2;
  }
  const Tokenizer tokenizer = Tokenizer::FromFile(argv[1]);
  std::optional<ToolsPrompt> tools;
  if (argc > 2) tools = ToolsPrompt::Find(argv[2]);
  for (std::string line; std::getline(std::cin, line);) {
    Json answer;
    try {
      answer = Answer(tokenizer, tools ? &*tools : nullptr, ParseJson(line, "request"));
    } catch (const Error& error) {
      answer = {{"error", error.what()}};
    }
    std::cout << DumpJson(answer) << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace senko::text

int main(int argc, char** argv) {
  try {
    return senko::text::Main(argc, argv);
  } catch (const senko::Error& error) {
    std::cerr << "text_tool: " << error.what() << "\n";
    return 2;
  }
}
