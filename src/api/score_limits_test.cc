// How many scores one answer may hold (behaviours.md, 8): 2^21 of its prompts', and as many of what it generates.
#include <gtest/gtest.h>

#include "api/choice_text.h"
#include "api/test_streams.h"

namespace senko::api {
namespace {

constexpr char kChat[] = "/v1/chat/completions";
constexpr char kCompletions[] = "/v1/completions";

// 2^21 scores in one answer and not one more, whichever field asks, however the prompt is repeated.
TEST(ScoreLimits, PromptsOfCompletions) {
  TestApi api({}, 1 << 21);
  api.Say({});
  const auto ids = [](size_t count) { return Json::array_t(count, Json(20)); };
  const Json long_prompt = ids(1000);
  const auto ask = [&](int64_t tokens, Json body) {
    body["prompt"] = Json::array();
    for (int64_t left = tokens; left > 0; left -= 1000) {
      body["prompt"].push_back(left >= 1000 ? long_prompt : Json(ids(static_cast<size_t>(left))));
    }
    return api.Post(kCompletions, body);
  };
  struct Case {
    Json body;
    int64_t most;
    const char* field;
  };
  const Case cases[] = {
      {{{"echo", true}, {"logprobs", 20}, {"n", 4}}, 24'966, "logprobs"},
      {{{"echo", true}, {"logprobs", 20}, {"n", 4}, {"stream", true}}, 24'966, "logprobs"},
      {{{"prompt_logprobs", 20}}, 99'864, "prompt_logprobs"},
      {{{"prompt_logprobs", 20}, {"n", 2}}, 49'932, "prompt_logprobs"},
      {{{"echo", true}, {"logprobs", 1}, {"prompt_logprobs", 20}}, 99'864, "prompt_logprobs"},
  };
  for (const Case& one : cases) {
    const size_t before = api.engine.submitted().size();
    ExpectError(*ask(one.most + 1, one.body), 400, one.field);
    EXPECT_EQ(api.engine.submitted().size(), before) << "the engine has seen it";
  }
  // Accepted at the limit; the engine is asked, but not made to write it all.
  api.engine.on_submit = [](const GenerationRequest&) { throw Error(ErrorCode::kOverloaded, "seen"); };
  for (const Case& one : cases) ExpectError(*ask(one.most, one.body), 503);
  ExpectError(*ask(1'000'000, {{"echo", true}, {"logprobs", 1}}), 503);
  ExpectError(*ask(1'000'000, {{"echo", true}, {"n", 2}, {"logprobs", 0}}), 503);
  // Without scores there is nothing to limit.
  ExpectError(*ask(1'000'000, {{"echo", true}, {"n", 2}}), 503);
}

TEST(ScoreLimits, PromptsOfChats) {
  TestApi api({}, 64 << 20);
  api.Say({});
  Json body = UserChat(std::string(99'800, 'x'));
  body["max_tokens"] = 1;
  body["prompt_logprobs"] = 19;
  EXPECT_EQ(api.Post(kChat, body)->status, 200);
  body["prompt_logprobs"] = 20;
  EXPECT_EQ(api.Post(kChat, body)->status, 200);
  body["messages"][0]["content"] = std::string(99'865, 'x');
  ExpectError(*api.Post(kChat, body), 400, "prompt_logprobs");
}

// Choices times tokens times scores of a token: what an answer in one piece collects. More is refused before anything
// runs; who names no number of tokens gets as many as fit, and may stream the rest.
TEST(ScoreLimits, WhatIsGenerated) {
  constexpr int64_t kLength = int64_t{16} << 20;
  TestApi api({}, kLength);
  api.Say({});
  struct Case {
    const char* path;
    Json body;
    int64_t most;
  };
  Json chat = UserChat();
  chat["logprobs"] = true;
  const auto chat_with = [&](int top, int n) {
    Json body = chat;
    body["top_logprobs"] = top;
    body["n"] = n;
    return body;
  };
  const Case cases[] = {
      {kChat, chat, 2'097'152},
      {kChat, chat_with(20, 1), 99'864},
      {kChat, chat_with(1, 128), 8192},
      {kChat, chat_with(20, 128), 780},
      {kCompletions, {{"prompt", "a"}, {"logprobs", 0}}, 2'097'152},
      {kCompletions, {{"prompt", "a"}, {"logprobs", 20}, {"n", 128}}, 780},
      {kCompletions, {{"prompt", {"a", "bb", "c"}}, {"logprobs", 4}, {"n", 7}}, 19'972},
  };
  for (Case one : cases) {
    SCOPED_TRACE(DumpJson(one.body));
    const size_t before = api.engine.submitted().size();
    one.body["max_tokens"] = one.most + 1;
    const auto refused = api.Post(one.path, one.body);
    ExpectError(*refused, 400, "max_tokens");
    EXPECT_NE(refused->body.find("at most " + std::to_string(one.most) + " "), std::string::npos) << refused->body;
    EXPECT_EQ(api.engine.submitted().size(), before) << "the engine has seen it";
    one.body["max_tokens"] = one.most;
    EXPECT_EQ(api.Post(one.path, one.body)->status, 200);
    EXPECT_EQ(api.engine.submitted().back().sampling.max_tokens, one.most);
    // A stream holds none of them.
    one.body["max_tokens"] = kLength / 2;
    one.body["stream"] = true;
    EXPECT_EQ(api.Post(one.path, one.body)->status, 200);
    EXPECT_EQ(api.engine.submitted().back().sampling.max_tokens, kLength / 2);
    // Without scores there is nothing to limit.
    one.body.erase("stream");
    one.body.erase("logprobs");
    one.body.erase("top_logprobs");
    EXPECT_EQ(api.Post(one.path, one.body)->status, 200);
    EXPECT_EQ(api.engine.submitted().back().sampling.max_tokens, kLength / 2);
  }
  Json newer = chat_with(20, 128);
  newer["max_completion_tokens"] = 781;
  ExpectError(*api.Post(kChat, newer), 400, "max_completion_tokens");
}

TEST(ScoreLimits, NoNumberOfTokensIsNoRefusal) {
  TestApi api({}, int64_t{16} << 20);
  api.Say(std::vector<int32_t>(1000, 20), 100);
  Json body = UserChat();
  body["logprobs"] = true;
  body["top_logprobs"] = 20;
  body["n"] = 128;
  const auto whole = api.Post(kChat, body);
  ASSERT_EQ(whole->status, 200);
  const auto count = [&](std::string_view what) {
    size_t times = 0;
    for (size_t at = 0; (at = whole->body.find(what, at)) != std::string::npos; at += what.size()) ++times;
    return times;
  };
  EXPECT_EQ(count("\"finish_reason\":\"length\""), 128u);
  EXPECT_EQ(count("\"top_logprobs\":["), 128u * 780);
  EXPECT_LT(whole->body.size(), size_t{150} << 20);
  body["n"] = 2;
  const SeenAnswer two = ChatWholeSeen(*api.Post(kChat, body));
  EXPECT_EQ(two.choices.at(1).finish, "stop");
  body["n"] = 128;
  body["stream"] = true;
  const auto stream = api.Post(kChat, body);
  EXPECT_EQ(stream->status, 200);
  EXPECT_GT(api.engine.submitted().back().sampling.max_tokens, 1 << 20);
}

// A call's tokens are shown nowhere, so a stream does not gather them while a long call is written.
TEST(ScoreLimits, CallsHoldNone) {
  TestApi api;
  TextOptions options;
  options.logprobs = true;
  const TurnOpening opening{text::TurnStart::kContent, ""};
  ChoiceText text(api.tokenizer, options, &opening);
  std::vector<Piece> pieces;
  const auto say = [&](std::string_view words) {
    OutputChunk chunk;
    for (const int32_t id : TestApi::Bytes(words)) chunk.tokens.push_back({id, TokenLogprob{id, -1, 1}, {}});
    pieces.clear();
    text.Push(chunk, kTestEos, &pieces);
  };
  const std::string begin = "say\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" ";
  say(begin + "string=\"true\">");
  ASSERT_FALSE(pieces.empty());
  EXPECT_EQ(pieces[0].tokens.size(), 3u);
  for (int i = 0; i < 100; ++i) {
    say(std::string(1000, 'x'));
    EXPECT_EQ(text.tokens_held(), 0u);
  }
}

}  // namespace
}  // namespace senko::api
