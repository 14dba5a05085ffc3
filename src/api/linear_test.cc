// What a request costs before the engine sees it grows with its bytes and no faster, whatever they are: a route reads
// four times as much in no more than kMostGrowth times as long (text.linear holds the parts to the same).
#include <gtest/gtest.h>

#include "api/test_api.h"
#include "text/test_growth.h"

namespace senko::api {
namespace {

constexpr size_t kSize = size_t{256} << 10;  // bytes of the smaller body; the larger has 1 MiB

using text::Repeated;

// [item(0), item(1), ...] of about `size` bytes.
Json List(size_t size, const std::function<Json(size_t)>& item) {
  Json list = Json::array();
  for (size_t bytes = 0; bytes < size;) {
    list.push_back(item(list.size()));
    bytes += DumpJson(list.back()).size() + 1;
  }
  return list;
}
Json Call(const std::string& id, const std::string& arguments) {
  return {{"id", id}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", arguments}}}};
}
Json Turn(Json calls) { return {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", std::move(calls)}}; }
Json Conversation(Json messages) { return {{"messages", std::move(messages)}}; }
Json Said(const std::string& role, const std::string& text) { return {{"role", role}, {"content", text}}; }

struct Case {
  const char* name;
  const char* path;
  std::function<Json(size_t size)> body;
};

const std::vector<Case>& Cases() {
  static constexpr char kChat[] = "/v1/chat/completions", kResponses[] = "/v1/responses", kMessages[] = "/v1/messages";
  static const std::vector<Case> cases = {
      {"one long word", kChat, [](size_t n) { return UserChat(std::string(n, 'a')); }},
      {"escapes", kChat, [](size_t n) { return UserChat(std::string(n / 6, '\x01')); }},
      {"grounding tokens", kChat,
       [](size_t n) {
         return Conversation({Said("user", "u"), Said("assistant", Repeated("<｜ref｜>", n)), Said("user", "u")});
       }},
      {"user turns", kChat, [](size_t n) { return Conversation(List(n, [](size_t) { return Said("user", "u"); })); }},
      {"turns", kChat,
       [](size_t n) {
         return Conversation(List(n, [](size_t i) { return Said(i % 2 ? "assistant" : "user", "x"); }));
       }},
      {"parts", kChat,
       [](size_t n) {
         Json body = UserChat();
         body["messages"][0]["content"] = List(n, [](size_t) { return Json{{"type", "text"}, {"text", "x"}}; });
         return body;
       }},
      {"calls and results in reverse", kChat,
       [](size_t n) {
         Json list = {Said("user", "u"), Turn(List(n, [](size_t i) { return Call(std::to_string(i), "{}"); }))};
         for (size_t i = list[1]["tool_calls"].size(); i > 0; --i) {
           list.push_back({{"role", "tool"}, {"tool_call_id", std::to_string(i - 1)}, {"content", "r"}});
         }
         return Conversation(list);
       }},
      {"calls of one id", kChat,
       [](size_t n) {
         return Conversation(List(n, [](size_t) { return Turn(Json::array({Call("c", "{\"a\":1}")})); }));
       }},
      {"arguments that are none", kChat,
       [](size_t n) {
         return Conversation({Turn(Json::array({Call("c", std::string(n, '['))})), Said("user", "u")});
       }},
      {"tools of systems", kChat,
       [](size_t n) {
         return Conversation(List(n, [](size_t) {
           Json system = Said("system", "s");
           system["tools"] = Json::array({{{"type", "function"}, {"function", {{"name", "f"}}}}});
           return system;
         }));
       }},
      {"a long schema", kChat,
       [](size_t n) {
         Json body = UserChat();
         Json schema = {{"enum", List(n, [](size_t i) { return Json(i); })}};
         body["tools"] = Json::array({{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", schema}}}}});
         return body;
       }},
      {"ids", "/v1/completions",
       [](size_t n) {
         return Json{{"prompt", List(n, [](size_t) { return Json(20); })}};
       }},
      {"control tokens", "/v1/completions",
       [](size_t n) {
         return Json{{"prompt", Repeated("<think><", n)}};
       }},
      {"items", kResponses,
       [](size_t n) {
         return Json{{"input", List(n, [](size_t i) -> Json {
                        if (i % 3 == 0) return {{"type", "reasoning"}, {"summary", Json::array()}};
                        if (i % 3 == 1) return {{"type", "function_call"}, {"call_id", "c"}, {"name", "f"}};
                        return {{"type", "function_call_output"}, {"call_id", "c"}, {"output", "x"}};
                      })}};
       }},
      {"blocks", kMessages,
       [](size_t n) {
         Json body = UserChat();
         body["max_tokens"] = 1;
         body["messages"][0]["content"] = List(n, [](size_t i) -> Json {
           if (i % 2 == 0) return {{"type", "text"}, {"text", "x"}};
           return {{"type", "tool_result"}, {"tool_use_id", "c"}, {"content", "r"}};
         });
         return body;
       }},
  };
  return cases;
}

TEST(Linear, WhatARequestCostsBeforeTheEngineSeesIt) {
  TestApi api({}, int64_t{16} << 20);
  int submitted = 0;
  api.engine.on_submit = [&](const GenerationRequest&) {
    ++submitted;
    throw Error(ErrorCode::kOverloaded, "seen");
  };
  for (const Case& one : Cases()) {
    std::string bodies[] = {DumpJson(one.body(kSize)), DumpJson(one.body(4 * kSize))};
    const auto ask = [&](const std::string& body) {
      const auto incoming = std::make_shared<Incoming>();
      incoming->context = api.context.get();
      incoming->http.body = body;
      incoming->exchange = std::make_shared<FakeExchange>();
      const auto work = one.path == std::string_view("/v1/chat/completions") ? ChatCompletions
                        : one.path == std::string_view("/v1/completions")    ? Completions
                        : one.path == std::string_view("/v1/responses")      ? Responses
                                                                             : senko::api::Messages;
      const int before = submitted;
      try {
        work(incoming);
      } catch (const Error& error) {
        EXPECT_EQ(submitted, before + 1) << one.name << " is refused: " << error.what();
      }
    };
    EXPECT_LE(text::TimesTheWork([&] { ask(bodies[0]); }, [&] { ask(bodies[1]); }, 6), text::kMostGrowth) << one.name;
  }
}

}  // namespace
}  // namespace senko::api
