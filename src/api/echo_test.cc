// Whatever the server puts into an answer is accepted when the client sends it back, in every API; and with tool_choice
// "none" no answer holds a call.
#include <gtest/gtest.h>

#include <random>

#include "api/fuzz_words.h"
#include "api/test_streams.h"

namespace senko::api {
namespace {

using namespace std::string_literals;
using Rng = std::mt19937_64;

std::string Pick(Rng* rng, const std::vector<std::string>& from) { return from[(*rng)() % from.size()]; }

std::string SomeWords(Rng* rng, size_t most) {
  std::string text;
  for (size_t i = (*rng)() % (most + 1); i > 0; --i) text += Pick(rng, Words());
  return text;
}

std::string Nested(size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

// A turn that is mostly well-formed markup around names and values that mostly are not.
std::string SomeTurn(Rng* rng) {
  const std::vector<std::string> values = {"",
                                           "1e999",
                                           "NaN",
                                           "{\"a\":1,\"a\":2}",
                                           "[1,",
                                           "\"x\"",
                                           "true",
                                           "-0",
                                           "1 2",
                                           "0.1e-400",
                                           "\"\\ud800\"",
                                           "12345678901234567890123",
                                           Nested(48),
                                           Nested(49),
                                           Nested(58),
                                           Nested(64),
                                           Nested(65),
                                           "\xEF\xBB\xBF"
                                           "1",
                                           "1\0"s + "x",
                                           "{\"\":{}}",
                                           " [1] "};
  std::string text;
  if ((*rng)() % 3 != 0) text += SomeWords(rng, 4) + Pick(rng, {"</think>", ""});
  if ((*rng)() % 2 != 0) text += SomeWords(rng, 4);
  std::string block = "\n\n<｜DSML｜ calls>\n";
  for (size_t calls = (*rng)() % 4; calls > 0; --calls) {
    const std::string name =
        Pick(rng, {"f", "g", "", "f\"", "é", std::string(5000, 'n'), std::string(4080, 'n'), SomeWords(rng, 2)});
    block += "<｜DSML｜ invoke name=\"" + name + "\">\n";
    if ((*rng)() % 5 == 0) block += Pick(rng, values);
    for (size_t k = (*rng)() % 4; k > 0; --k) {
      block += "<｜DSML｜ parameter name=\"" + Pick(rng, {"a", "b", "", "x\"y", "__proto__", SomeWords(rng, 2)});
      block += "\" string=\"" + Pick(rng, {"true", "false", "false", "?"}) + "\">";
      block += (*rng)() % 3 == 0 ? SomeWords(rng, 4) : Pick(rng, values);
      block += Pick(rng, {"</｜DSML｜ parameter>\n", "</｜DSML｜ parameter>\n", ""});
    }
    block += Pick(rng, {"</｜DSML｜ invoke>\n", "</｜DSML｜ invoke>\n", ""});
  }
  block += "</｜DSML｜ calls>";
  if ((*rng)() % 4 == 0) block.resize((*rng)() % block.size());
  return text + block + ((*rng)() % 4 == 0 ? SomeWords(rng, 3) : "");
}

const Json kTools = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
const Json kFlatTools = {{{"type", "function"}, {"name", "f"}}};
const Json kAnthropicTools = {{{"name", "f"}}};

void EchoChat(TestApi* api, const std::string& text, bool thinking) {
  Json body = UserChat();
  body["tools"] = kTools;
  body["chat_template_kwargs"] = {{"thinking", thinking}};
  const auto send_back = [&](const Json& turn) {
    api->Say({});
    Json next = body;
    next.erase("stream");
    next["messages"].push_back(turn);
    for (const Json& call : turn.value("tool_calls", Json::array())) {
      next["messages"].push_back({{"role", "tool"}, {"tool_call_id", call.at("id")}, {"content", "r"}});
    }
    const auto exchange = api->Post("/v1/chat/completions", next);
    EXPECT_EQ(exchange->status, 200) << exchange->body << text;
    // Some clients send the arguments as what they parsed.
    for (Json& message : next["messages"]) {
      if (!message.contains("tool_calls")) continue;
      for (Json& call : message["tool_calls"]) {
        call["function"]["arguments"] = ParseJson(call["function"]["arguments"].get<std::string>(), "arguments");
      }
    }
    EXPECT_EQ(api->Post("/v1/chat/completions", next)->status, 200) << text;
  };
  api->SayBytes(text, 7);
  send_back(api->Post("/v1/chat/completions", body)->json().at("choices")[0].at("message"));
  api->SayBytes(text, 7);
  body["stream"] = true;
  const Seen seen = ChatStreamSeen(*api->Post("/v1/chat/completions", body), false).choices.at(0);
  Json turn = {{"role", "assistant"}, {"content", seen.content}, {"reasoning_content", seen.reasoning}};
  for (size_t i = 0; i < seen.calls.size(); ++i) {
    const Json function = {{"name", seen.calls[i].name}, {"arguments", seen.calls[i].arguments}};
    turn["tool_calls"].push_back({{"id", seen.call_ids.at(i)}, {"type", "function"}, {"function", function}});
  }
  send_back(turn);
}

void EchoResponses(TestApi* api, const std::string& text, bool thinking) {
  Json body = {{"input", Json::array({{{"role", "user"}, {"content", "hi"}}})}, {"tools", kFlatTools}};
  body["reasoning"] = {{"effort", thinking ? "high" : "none"}};
  api->SayBytes(text, 7);
  const Json answer = api->Post("/v1/responses", body)->json();
  for (const Json& item : answer.at("output")) {
    body["input"].push_back(item);
    if (item.at("type") != "function_call") continue;
    body["input"].push_back({{"type", "function_call_output"}, {"call_id", item.at("call_id")}, {"output", "r"}});
  }
  api->Say({});
  const auto exchange = api->Post("/v1/responses", body);
  EXPECT_EQ(exchange->status, 200) << exchange->body << text;
}

void EchoMessages(TestApi* api, const std::string& text, bool thinking) {
  Json body = {{"max_tokens", 20000}, {"messages", UserChat().at("messages")}, {"tools", kAnthropicTools}};
  body["thinking"] = {{"type", thinking ? "adaptive" : "disabled"}};
  api->SayBytes(text, 7);
  const Json content = api->Post("/v1/messages", body)->json().at("content");
  body["stream"] = true;
  const Seen seen = MessagesStreamSeen(*api->Post("/v1/messages", body)).choices.at(0);
  body.erase("stream");
  body["messages"].push_back({{"role", "assistant"}, {"content", content}});
  Json results = Json::array({{{"type", "text"}, {"text", "so"}}});
  size_t calls = 0;
  for (const Json& block : content) {
    if (block.at("type") != "tool_use") continue;
    EXPECT_EQ(block.at("name"), seen.calls.at(calls++).name);
    results.push_back({{"type", "tool_result"}, {"tool_use_id", block.at("id")}, {"content", "r"}});
  }
  body["messages"].push_back({{"role", "user"}, {"content", results}});
  api->Say({});
  const auto exchange = api->Post("/v1/messages", body);
  EXPECT_EQ(exchange->status, 200) << exchange->body << text;
}

TEST(Echo, WhateverWasAnsweredIsAccepted) {
  TestApi api({}, 1 << 20);
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const std::string text = SomeTurn(&rng);
    const bool thinking = rng() % 2;
    EchoChat(&api, text, thinking);
    EchoResponses(&api, text, thinking);
    EchoMessages(&api, text, thinking);
    if (HasFailure()) return;
  }
}

// Raw completions have a text only.
TEST(Echo, ATextIsAPrompt) {
  TestApi api({}, 1 << 20);
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Rng rng(seed);
    api.SayBytes("x" + SomeTurn(&rng), 7);
    const Json answer = api.Post("/v1/completions", Json{{"prompt", "x"}, {"max_tokens", 20000}})->json();
    EXPECT_EQ(api.Post("/v1/completions", Json{{"prompt", answer.at("choices")[0].at("text")}})->status, 200);
  }
}

TEST(Echo, WithoutToolsInChoiceMarkupStaysText) {
  TestApi api;
  const std::string block = BlockWord();
  api.SayBytes("Well." + block);
  Json chat = UserChat();
  chat["tools"] = kTools;
  Json response = {{"input", "hi"}, {"tools", kFlatTools}, {"reasoning", {{"effort", "none"}}}};
  Json message = {{"max_tokens", 1000}, {"messages", chat["messages"]}, {"tools", kAnthropicTools}};
  for (const bool none : {true, false}) {
    chat["tool_choice"] = none ? "none" : "auto";
    response["tool_choice"] = none ? "none" : "auto";
    message["tool_choice"] = {{"type", none ? "none" : "auto"}};
    for (const bool stream : {false, true}) {
      chat["stream"] = response["stream"] = message["stream"] = stream;
      const auto a = api.Post("/v1/chat/completions", chat), b = api.Post("/v1/responses", response),
                 c = api.Post("/v1/messages", message);
      for (const SeenAnswer& answer : {stream ? ChatStreamSeen(*a, false) : ChatWholeSeen(*a),
                                       stream ? ResponsesStreamSeen(*b) : ResponsesWholeSeen(*b),
                                       stream ? MessagesStreamSeen(*c) : MessagesWholeSeen(*c)}) {
        const Seen& seen = answer.choices.at(0);
        EXPECT_EQ(seen.content, none ? "Well." + block : "Well.");
        EXPECT_EQ(seen.calls.size(), none ? 0u : 1u);
        EXPECT_EQ(seen.finish, none ? "stop" : "tool_calls");
      }
    }
  }
}

}  // namespace
}  // namespace senko::api
