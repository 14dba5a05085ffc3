// How much one request may ask for, exactly at the limits; and that a count is what the prompt would be.
#include <gtest/gtest.h>

#include "api/test_streams.h"

namespace senko::api {
namespace {

constexpr char kPath[] = "/v1/completions";

TEST(PromptLimits, NoListIsLongerThanWhatMayWait) {
  TestApi api({}, 4096, nullptr, true, 3);
  EXPECT_EQ(api.Post(kPath, Json{{"prompt", {"a", "b", "c"}}, {"n", 5}})->status, 200);
  const auto exchange = api.Post(kPath, Json{{"prompt", {"a", "b", "c", "d"}}});
  ExpectError(*exchange, 400, "prompt");
  const std::string message = exchange->json().at("error").at("message");
  EXPECT_NE(message.find("at most 3 items"), std::string::npos) << message;
  EXPECT_NE(message.find("--max-num-waiting"), std::string::npos) << message;
  EXPECT_EQ(api.engine.submitted().size(), 3u);
}

TEST(PromptLimits, APromptAloneMayTakeAllOfTheLength) {
  TestApi api({}, 100);
  const auto ask = [&](size_t length, int64_t max_tokens) {
    return api.Post(
        kPath, Json{{"prompt", std::string(length, 'a')}, {"max_tokens", max_tokens}, {"echo", true}, {"logprobs", 0}});
  };
  const auto exact = ask(100, 0);
  ASSERT_EQ(exact->status, 200) << exact->body;
  EXPECT_EQ(exact->json().at("usage").at("completion_tokens"), 0);
  EXPECT_EQ(exact->json().at("choices")[0].at("text"), std::string(100, 'a'));
  EXPECT_EQ(api.engine.submitted().back().sampling.max_tokens, 1);
  EXPECT_EQ(ask(99, 1)->status, 200);
  ExpectError(*ask(101, 0), 400, "prompt", "context_length_exceeded");
  ExpectError(*ask(100, 1), 400, "prompt", "context_length_exceeded");
}

// Also one of the longest tokens, which from its bytes alone could not be shorter.
TEST(PromptLimits, ALongTextMayTakeAllOfTheLength) {
  TestApi api({}, 100);
  std::string longest;
  for (int32_t id = 0; id < static_cast<int32_t>(api.tokenizer.vocab_size()); ++id) {
    const std::string one = api.tokenizer.Decode(std::vector<int32_t>{id}, false);
    if (one.size() <= longest.size()) continue;
    std::string all;
    for (int i = 0; i < 100; ++i) all += one;
    if (api.tokenizer.Encode(all, text::AddedTokens::kAll).size() == 100) longest = one;
  }
  std::string prompt;
  for (int i = 0; i < 100; ++i) prompt += longest;
  ASSERT_EQ(api.tokenizer.LeastIds(prompt.size()), 100u) << longest;
  EXPECT_EQ(api.Post(kPath, Json{{"prompt", prompt}, {"max_tokens", 0}, {"echo", true}})->status, 200);
  ExpectError(*api.Post(kPath, Json{{"prompt", prompt}, {"max_tokens", 1}}), 400, "prompt", "context_length_exceeded");
}

TEST(PromptLimits, TheItemAtFaultIsNamed) {
  TestApi api({}, 100);
  for (const Json& item : {Json(std::string(100, 'a')), Json(std::vector<int>(100, 20))}) {
    Json first = item.is_string() ? Json("a") : Json::array({20});
    ExpectError(*api.Post(kPath, Json{{"prompt", Json::array({first, item})}}), 400, "prompt[1]",
                "context_length_exceeded");
    ExpectError(*api.Post(kPath, Json{{"prompt", item}}), 400, "prompt", "context_length_exceeded");
  }
}

// A remembered turn has other ids than its rendering: the count goes the way of the chat.
TEST(PromptLimits, CountsAreWhatThePromptsWouldBe) {
  TestApi api;
  Json chat = UserChat();
  chat["tools"] = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  chat["cache_salt"] = "s";
  api.SayBytes(
      "So.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"n\" string=\"false\">[1 ,  2]"
      "</｜DSML｜ parameter>\n\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>");
  const Json turn = api.Post("/v1/chat/completions", chat, "key")->json().at("choices")[0].at("message");
  ASSERT_EQ(turn.at("tool_calls").size(), 1u);
  chat["messages"].push_back(turn);
  chat["messages"].push_back({{"role", "tool"}, {"tool_call_id", turn["tool_calls"][0]["id"]}, {"content", "r"}});
  std::vector<std::vector<int32_t>> seen;
  for (const char* key : {"key", "other"}) {
    for (const char* salt : {"s", "t"}) {
      chat["cache_salt"] = salt;
      const auto counted = api.Post("/tokenize", chat, key);
      ASSERT_EQ(counted->status, 200) << counted->body;
      ASSERT_EQ(api.Post("/v1/chat/completions", chat, key)->status, 200);
      seen.push_back(api.engine.submitted().back().prompt);
      EXPECT_EQ(counted->json().at("tokens"), Json(seen.back()));
      EXPECT_EQ(seen.back() == seen[0], seen.size() == 1) << "remembered for one key and salt alone";
    }
  }
  Json message = {{"messages", UserChat().at("messages")}, {"cache_salt", "s"}};
  EXPECT_EQ(api.Post("/v1/messages/count_tokens", message)->status, 200);
  message["cache_salt"] = "";
  ExpectError(*api.Post("/v1/messages/count_tokens", message), 400);
}

}  // namespace
}  // namespace senko::api
