// What a client makes of an answer, whole or streamed, in each API; and the rules that every stream keeps.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "api/test_api.h"

namespace senko::api {

struct SeenCall {
  std::string name, arguments;
  bool operator==(const SeenCall&) const = default;
};
struct Seen {
  std::string reasoning, content, finish;
  std::vector<SeenCall> calls;
  std::vector<std::string> call_ids;  // new in every answer, so not compared
  Json stop;                          // stop_reason
  Json logprobs = Json::array(), reasoning_logprobs = Json::array();
  bool operator==(const Seen& o) const {
    return reasoning == o.reasoning && content == o.content && finish == o.finish && calls == o.calls &&
           stop == o.stop && logprobs == o.logprobs && reasoning_logprobs == o.reasoning_logprobs;
  }
};
inline std::ostream& operator<<(std::ostream& out, const Seen& seen) {
  out << "reasoning " << DumpJson(Json(seen.reasoning)) << " content " << DumpJson(Json(seen.content)) << " finish "
      << seen.finish << " stop " << seen.stop << " logprobs " << seen.logprobs << seen.reasoning_logprobs;
  for (const SeenCall& call : seen.calls) out << " call " << call.name << call.arguments;
  return out;
}
struct SeenAnswer {
  std::map<int64_t, Seen> choices;
  Json usage;
  bool operator==(const SeenAnswer&) const = default;
};

inline void CheckCalls(const Seen& seen) {
  for (const SeenCall& call : seen.calls) {
    EXPECT_TRUE(ParseJson(call.arguments, "arguments").is_object()) << call.arguments;
  }
}

// ---- /v1/chat/completions

inline SeenAnswer ChatWholeSeen(const FakeExchange& exchange) {
  SeenAnswer out;
  EXPECT_EQ(exchange.status, 200) << exchange.body;
  const Json answer = exchange.json();
  EXPECT_EQ(answer.at("object"), "chat.completion");
  for (const Json& choice : answer.at("choices")) {
    Seen seen;
    const Json& message = choice.at("message");
    EXPECT_EQ(message.at("role"), "assistant");
    if (message.at("content").is_string()) seen.content = message.at("content");
    seen.reasoning = message.value("reasoning_content", "");
    EXPECT_EQ(message.value("reasoning", ""), seen.reasoning);
    for (const Json& call : message.value("tool_calls", Json::array())) {
      EXPECT_EQ(call.at("type"), "function");
      seen.calls.push_back({call.at("function").at("name"), call.at("function").at("arguments")});
      seen.call_ids.push_back(call.at("id"));
    }
    seen.finish = choice.at("finish_reason").get<std::string>();
    seen.stop = choice.at("stop_reason");
    if (!choice.at("logprobs").is_null()) {
      seen.logprobs = choice.at("logprobs").at("content");
      seen.reasoning_logprobs = choice.at("logprobs").value("reasoning_content", Json::array());
    }
    CheckCalls(seen);
    EXPECT_TRUE(out.choices.emplace(choice.at("index"), seen).second);
  }
  out.usage = answer.at("usage");
  return out;
}

// `usage`: the stream was asked for it.
inline SeenAnswer ChatStreamSeen(const FakeExchange& exchange, bool usage = true) {
  SeenAnswer out;
  EXPECT_TRUE(exchange.begun) << exchange.body;
  EXPECT_FALSE(exchange.events.empty());
  if (exchange.events.empty()) return out;
  EXPECT_EQ(exchange.events.back().second, "[DONE]");
  std::map<int64_t, bool> roles;
  for (size_t i = 0; i + 1 < exchange.events.size(); ++i) {
    EXPECT_EQ(exchange.events[i].first, "");
    const Json chunk = ParseJson(exchange.events[i].second, "chunk");
    EXPECT_EQ(chunk.at("object"), "chat.completion.chunk");
    if (chunk.at("choices").empty()) {
      EXPECT_TRUE(usage);
      EXPECT_EQ(i + 2, exchange.events.size()) << "usage is the last chunk";
      out.usage = chunk.at("usage");
      continue;
    }
    EXPECT_EQ(chunk.at("choices").size(), 1u);
    const Json& choice = chunk.at("choices")[0];
    Seen& seen = out.choices[choice.at("index")];
    EXPECT_EQ(seen.finish, "") << "nothing follows the finish_reason";
    const Json& delta = choice.at("delta");
    EXPECT_EQ(delta.contains("role"), !roles[choice.at("index")]) << "the role comes once, first";
    roles[choice.at("index")] = true;
    const bool content = delta.contains("content") && delta.at("content") != "";
    EXPECT_LE(content + delta.contains("reasoning_content") + delta.contains("tool_calls"), 1) << delta;
    EXPECT_EQ(delta.contains("reasoning"), delta.contains("reasoning_content"));
    if (delta.contains("content")) seen.content += delta.at("content").get<std::string>();
    if (delta.contains("reasoning_content")) {
      EXPECT_EQ(delta.at("reasoning"), delta.at("reasoning_content"));
      EXPECT_TRUE(seen.content.empty());
      seen.reasoning += delta.at("reasoning_content").get<std::string>();
    }
    if (delta.contains("tool_calls")) {
      EXPECT_EQ(delta.at("tool_calls").size(), 1u);
      const Json& call = delta.at("tool_calls")[0];
      if (call.contains("id")) {
        EXPECT_EQ(call.at("index"), seen.calls.size());
        seen.calls.push_back({call.at("function").at("name"), ""});
        seen.call_ids.push_back(call.at("id"));
      }
      EXPECT_EQ(call.at("index"), seen.calls.size() - 1);
      seen.calls.back().arguments += call.at("function").at("arguments").get<std::string>();
    }
    if (!choice.at("logprobs").is_null()) {
      for (const Json& token : choice.at("logprobs").at("content")) seen.logprobs.push_back(token);
      for (const Json& token : choice.at("logprobs").value("reasoning_content", Json::array())) {
        seen.reasoning_logprobs.push_back(token);
      }
    }
    EXPECT_TRUE(choice.contains("finish_reason"));
    if (!choice.at("finish_reason").is_null()) {
      seen.finish = choice.at("finish_reason");
      seen.stop = choice.at("stop_reason");
    }
  }
  for (const auto& [index, seen] : out.choices) {
    EXPECT_NE(seen.finish, "") << "choice " << index << " never finished";
    CheckCalls(seen);
  }
  if (usage) {
    EXPECT_FALSE(out.usage.is_null());
  }
  return out;
}

// ---- /v1/completions; logprobs are the four lists, joined

inline void AddLegacy(const Json& logprobs, Seen* seen) {
  if (logprobs.is_null()) return;
  if (seen->logprobs.is_array()) {
    seen->logprobs = Json{{"tokens", Json::array()},
                          {"token_logprobs", Json::array()},
                          {"top_logprobs", Json::array()},
                          {"text_offset", Json::array()}};
  }
  for (auto& [name, list] : seen->logprobs.items()) {
    EXPECT_EQ(logprobs.at(name).size(), logprobs.at("tokens").size());
    for (const Json& item : logprobs.at(name)) list.push_back(item);
  }
}

inline SeenAnswer CompletionWholeSeen(const FakeExchange& exchange) {
  SeenAnswer out;
  EXPECT_EQ(exchange.status, 200) << exchange.body;
  const Json answer = exchange.json();
  EXPECT_EQ(answer.at("object"), "text_completion");
  for (const Json& choice : answer.at("choices")) {
    Seen seen;
    seen.content = choice.at("text");
    seen.finish = choice.at("finish_reason").get<std::string>();
    seen.stop = choice.at("stop_reason");
    AddLegacy(choice.at("logprobs"), &seen);
    EXPECT_TRUE(out.choices.emplace(choice.at("index"), seen).second);
  }
  out.usage = answer.at("usage");
  return out;
}

inline SeenAnswer CompletionStreamSeen(const FakeExchange& exchange) {
  SeenAnswer out;
  EXPECT_TRUE(exchange.begun) << exchange.body;
  EXPECT_FALSE(exchange.events.empty());
  if (exchange.events.empty()) return out;
  EXPECT_EQ(exchange.events.back().second, "[DONE]");
  for (size_t i = 0; i + 1 < exchange.events.size(); ++i) {
    const Json chunk = ParseJson(exchange.events[i].second, "chunk");
    if (chunk.at("choices").empty()) {
      EXPECT_EQ(i + 2, exchange.events.size());
      out.usage = chunk.at("usage");
      continue;
    }
    const Json& choice = chunk.at("choices")[0];
    Seen& seen = out.choices[choice.at("index")];
    EXPECT_EQ(seen.finish, "");
    seen.content += choice.at("text").get<std::string>();
    AddLegacy(choice.at("logprobs"), &seen);
    if (!choice.at("finish_reason").is_null()) seen.finish = choice.at("finish_reason");
    seen.stop = choice.at("stop_reason");
  }
  for (const auto& [index, seen] : out.choices) EXPECT_NE(seen.finish, "") << index;
  return out;
}

// ---- /v1/responses

inline SeenAnswer ResponseSeen(const Json& response) {
  SeenAnswer out;
  Seen& seen = out.choices[0];
  seen.finish = response.at("status") == "incomplete" ? "length" : "stop";
  for (const Json& item : response.at("output")) {
    const std::string type = item.at("type");
    if (type == "reasoning") {
      seen.reasoning += item.at("content")[0].at("text").get<std::string>();
    } else if (type == "message") {
      seen.content += item.at("content")[0].at("text").get<std::string>();
    } else {
      EXPECT_EQ(type, "function_call");
      seen.calls.push_back({item.at("name"), item.at("arguments")});
      seen.call_ids.push_back(item.at("call_id"));
    }
  }
  if (!seen.calls.empty() && seen.finish == "stop") seen.finish = "tool_calls";
  CheckCalls(seen);
  out.usage = response.at("usage");
  return out;
}

inline SeenAnswer ResponsesWholeSeen(const FakeExchange& exchange) {
  EXPECT_EQ(exchange.status, 200) << exchange.body;
  return ResponseSeen(exchange.json());
}

// Checks the order of events and that deltas, dones and the final object say the same.
inline SeenAnswer ResponsesStreamSeen(const FakeExchange& exchange) {
  EXPECT_TRUE(exchange.begun);
  int64_t sequence = 0;
  std::string open_item, text;
  bool part_open = false;
  Json items = Json::array(), last;
  for (const auto& [name, data] : exchange.events) {
    const Json event = ParseJson(data, "event");
    const std::string type = event.at("type");
    EXPECT_EQ(name, type);
    EXPECT_EQ(event.at("sequence_number"), sequence++);
    if (sequence <= 2) {
      EXPECT_EQ(type, sequence == 1 ? "response.created" : "response.in_progress");
      EXPECT_EQ(event.at("response").at("status"), "in_progress");
      continue;
    }
    EXPECT_TRUE(last.is_null()) << "nothing follows the end";
    if (type == "response.output_item.added") {
      EXPECT_EQ(open_item, "");
      open_item = event.at("item").at("id");
      text.clear();
      EXPECT_EQ(event.at("output_index"), items.size());
      EXPECT_EQ(event.at("item").at("status"), "in_progress");
    } else if (type == "response.content_part.added") {
      EXPECT_EQ(event.at("item_id"), open_item);
      part_open = true;
    } else if (type.ends_with(".delta")) {
      EXPECT_EQ(event.at("item_id"), open_item);
      EXPECT_EQ(event.at("output_index"), items.size());
      EXPECT_TRUE(part_open || type == "response.function_call_arguments.delta");
      text += event.at("delta").get<std::string>();
    } else if (type == "response.output_text.done" || type == "response.reasoning_text.done") {
      EXPECT_EQ(event.at("text"), text);
    } else if (type == "response.function_call_arguments.done") {
      EXPECT_EQ(event.at("arguments"), text);
    } else if (type == "response.content_part.done") {
      EXPECT_EQ(event.at("part").at("text"), text);
      part_open = false;
    } else if (type == "response.output_item.done") {
      EXPECT_FALSE(part_open);
      EXPECT_EQ(event.at("item").at("id"), open_item);
      open_item.clear();
      items.push_back(event.at("item"));
    } else {
      EXPECT_TRUE(type == "response.completed" || type == "response.incomplete" || type == "response.failed") << type;
      last = event.at("response");
      EXPECT_EQ("response." + last.at("status").get<std::string>(), type);
      EXPECT_EQ(last.at("output"), items);
    }
  }
  EXPECT_EQ(open_item, "");
  if (last.is_null()) {
    ADD_FAILURE() << "the stream has no end";
    return {};
  }
  return ResponseSeen(last);
}

// ---- /v1/messages

inline std::string FinishOfAnthropic(const std::string& reason) {
  if (reason == "max_tokens") return "length";
  if (reason == "tool_use") return "tool_calls";
  EXPECT_TRUE(reason == "end_turn" || reason == "stop_sequence") << reason;
  return "stop";
}

inline SeenAnswer MessagesWholeSeen(const FakeExchange& exchange) {
  EXPECT_EQ(exchange.status, 200) << exchange.body;
  const Json message = exchange.json();
  SeenAnswer out;
  Seen& seen = out.choices[0];
  for (const Json& block : message.at("content")) {
    const std::string type = block.at("type");
    if (type == "thinking") {
      seen.reasoning += block.at("thinking").get<std::string>();
    } else if (type == "text") {
      seen.content += block.at("text").get<std::string>();
    } else {
      EXPECT_EQ(type, "tool_use");
      seen.calls.push_back({block.at("name"), DumpJson(block.at("input"))});
      seen.call_ids.push_back(block.at("id"));
    }
  }
  seen.finish = FinishOfAnthropic(message.at("stop_reason"));
  seen.stop = message.at("stop_sequence");
  CheckCalls(seen);
  out.usage = message.at("usage");
  return out;
}

inline SeenAnswer MessagesStreamSeen(const FakeExchange& exchange) {
  SeenAnswer out;
  Seen& seen = out.choices[0];
  EXPECT_TRUE(exchange.begun);
  std::string block;  // type of the open one
  int64_t index = 0;
  for (size_t i = 0; i < exchange.events.size(); ++i) {
    const auto& [name, data] = exchange.events[i];
    const Json event = ParseJson(data, "event");
    EXPECT_EQ(event.at("type"), name);
    if (i < 2) {
      EXPECT_EQ(name, i == 0 ? "message_start" : "ping");
    } else if (name == "content_block_start") {
      EXPECT_EQ(block, "");
      EXPECT_EQ(event.at("index"), index);
      block = event.at("content_block").at("type");
      if (block == "tool_use") {
        seen.calls.push_back({event.at("content_block").at("name"), ""});
        seen.call_ids.push_back(event.at("content_block").at("id"));
        EXPECT_EQ(event.at("content_block").at("input"), Json::object());
      }
    } else if (name == "content_block_delta") {
      EXPECT_EQ(event.at("index"), index);
      const Json& delta = event.at("delta");
      if (block == "thinking") seen.reasoning += delta.at("thinking").get<std::string>();
      if (block == "text") seen.content += delta.at("text").get<std::string>();
      if (block == "tool_use") seen.calls.back().arguments += delta.at("partial_json").get<std::string>();
      EXPECT_NE(block, "");
    } else if (name == "content_block_stop") {
      EXPECT_EQ(event.at("index"), index++);
      EXPECT_NE(block, "");
      block.clear();
    } else if (name == "message_delta") {
      EXPECT_EQ(i + 2, exchange.events.size());
      seen.finish = FinishOfAnthropic(event.at("delta").at("stop_reason"));
      seen.stop = event.at("delta").at("stop_sequence");
      out.usage = event.at("usage");
    } else {
      EXPECT_EQ(name, "message_stop");
    }
  }
  EXPECT_EQ(block, "");
  EXPECT_NE(seen.finish, "");
  for (SeenCall& call : seen.calls) call.arguments = DumpJson(ParseJson(call.arguments, "arguments"));
  return out;
}

}  // namespace senko::api
