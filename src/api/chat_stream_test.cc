// Text of chat completions: streamed, whole, and what both keep (behaviours.md, 1 and 3).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api/test_streams.h"
#include "text/python_json.h"

namespace senko::api {
namespace {

constexpr std::string_view kDsml = "｜DSML｜";

std::string Parameter(const std::string& name, bool is_string, const std::string& value) {
  return std::string("<｜DSML｜ parameter name=\"") + name + "\" string=\"" + (is_string ? "true" : "false") + "\">" +
         value + "</｜DSML｜ parameter>\n";
}
std::string Invoke(const std::string& name, const std::string& body) {
  return "<｜DSML｜ invoke name=\"" + name + "\">\n" + body + "</｜DSML｜ invoke>\n";
}
std::string Calls(const std::string& body) { return "\n\n<｜DSML｜ calls>\n" + body + "</｜DSML｜ calls>"; }

Json Tools() {
  return Json::array({{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", {{"type", "object"}}}}}},
                      {{"type", "function"}, {"function", {{"name", "g"}}}}});
}

// Whole and streamed; both must agree.
SeenAnswer Ask(TestApi* api, Json body) {
  const SeenAnswer whole = ChatWholeSeen(*api->Post("/v1/chat/completions", body));
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const SeenAnswer stream = ChatStreamSeen(*api->Post("/v1/chat/completions", body));
  EXPECT_EQ(whole.choices, stream.choices);
  EXPECT_EQ(whole.usage, stream.usage);
  return whole;
}
Seen AskOne(TestApi* api, const Json& body) {
  const SeenAnswer answer = Ask(api, body);
  EXPECT_EQ(answer.choices.size(), 1u);
  return answer.choices.at(0);
}
Json Thinking(Json body) {
  body["chat_template_kwargs"] = {{"thinking", true}};
  return body;
}

TEST(ChatStream, CharactersCutAnywhereComeWhole) {
  TestApi api;
  const std::string text = "🌍é漢字a\u0301🇯🇵 end \"q\" \\ \n\t\x01";
  for (const size_t chunk : {1, 2, 3, 7}) {
    api.SayBytes(text, chunk);
    EXPECT_EQ(AskOne(&api, UserChat()).content, text);
  }
}

TEST(ChatStream, TheEndInsideACharacter) {
  TestApi api;
  api.SayBytes("ab🌍");
  const std::vector<std::string> expected = {"a", "ab", "ab\uFFFD", "ab\uFFFD", "ab\uFFFD", "ab🌍"};
  for (size_t max_tokens = 1; max_tokens <= expected.size(); ++max_tokens) {
    Json body = UserChat();
    body["max_tokens"] = max_tokens;
    const Seen seen = AskOne(&api, body);
    EXPECT_EQ(seen.content, expected[max_tokens - 1]);
    EXPECT_EQ(seen.finish, max_tokens == expected.size() ? "length" : "length");
  }
}

TEST(ChatStream, StopsWhateverTheCuts) {
  TestApi api;
  struct Case {
    std::string text;
    std::vector<std::string> stops;
    std::string content;
    Json stop;
  };
  const std::vector<Case> cases = {
      {"one STOP two", {"STOP"}, "one ", "STOP"},
      {"xxabcd", {"ab", "abc", "bc"}, "xx", "ab"},
      {"xxabcd", {"abcd", "bc"}, "xxa", "bc"},
      {"aab aab", {"aaab", "ab a"}, "a", "ab a"},
      {"held STO", {"STOP"}, "held STO", nullptr},
      {"held STOSTOP", {"STOP"}, "held STO", "STOP"},
      {"日本語の終わり", {"語の"}, "日本", "語の"},
      {"a\n\nb", {"\n\n"}, "a", "\n\n"},
      {"a\n\n", {"\n\n"}, "a", "\n\n"},
  };
  for (const Case& c : cases) {
    for (const size_t chunk : {1, 2, 3, 5, 100}) {
      api.SayBytes(c.text, chunk);
      Json body = UserChat();
      body["stop"] = c.stops;
      Seen seen = AskOne(&api, body);
      EXPECT_EQ(seen.content, c.content) << c.text << chunk;
      EXPECT_EQ(seen.finish, "stop");
      EXPECT_EQ(seen.stop, c.stop);
      body["include_stop_str_in_output"] = true;
      seen = AskOne(&api, body);
      EXPECT_EQ(seen.content, c.content + (c.stop.is_null() ? "" : c.stop.get<std::string>()));
    }
  }
}

TEST(ChatStream, AStopIsToldToTheEngineAndEndsTheAnswerAtOnce) {
  TestApi api;
  api.SayBytes("one STOP" + std::string(3000, 'x'));
  Json body = UserChat();
  body["stop"] = "STOP";
  const SeenAnswer answer = Ask(&api, body);
  EXPECT_EQ(answer.usage.at("completion_tokens"), 8);
  EXPECT_EQ(api.engine.stopped(), (std::set<std::pair<uint64_t, int>>{{1, 0}, {2, 0}}));
  EXPECT_TRUE(api.engine.Idle());
}

TEST(ChatStream, StopsAreForContentAlone) {
  TestApi api;
  api.SayBytes("think STOP more</think>say STOP this");
  Json body = Thinking(UserChat());
  body["stop"] = "STOP";
  const Seen seen = AskOne(&api, body);
  EXPECT_EQ(seen.reasoning, "think STOP more");
  EXPECT_EQ(seen.content, "say ");
  body["tools"] = Tools();
  api.SayBytes("t</think>ok" + Calls(Invoke("f", Parameter("a", true, "STOP"))));
  const Seen called = AskOne(&api, body);
  EXPECT_EQ(called.calls, (std::vector<SeenCall>{{"f", R"({"a": "STOP"})"}}));
  EXPECT_EQ(called.finish, "tool_calls");
}

TEST(ChatStream, NoStopBeforeMinTokens) {
  TestApi api;
  api.SayBytes("a.b.c.d");
  Json body = UserChat();
  body["stop"] = ".";
  body["min_tokens"] = 4;
  EXPECT_EQ(AskOne(&api, body).content, "a.b.c");
}

TEST(ChatStream, StopTokensEndAndAreNotShown) {
  TestApi api({"a", "b", "c"});
  Json body = UserChat();
  body["stop_token_ids"] = {kFirstStep + 1};
  Seen seen = AskOne(&api, body);
  EXPECT_EQ(seen.content, "a");
  EXPECT_EQ(seen.stop, kFirstStep + 1);
  EXPECT_EQ(seen.finish, "stop");
  body["include_stop_str_in_output"] = true;
  EXPECT_EQ(AskOne(&api, body).content, "ab");
}

TEST(ChatStream, ReasoningWhateverTheCuts) {
  const std::string text = "why < not</think>Because.";
  TestApi api;
  for (size_t chunk = 1; chunk <= text.size(); ++chunk) {
    api.SayBytes(text, chunk);
    const Seen seen = AskOne(&api, Thinking(UserChat()));
    EXPECT_EQ(seen.reasoning, "why < not");
    EXPECT_EQ(seen.content, "Because.");
  }
  // One token that holds both sides, the real token, and an end inside the tag.
  TestApi steps({"thought</think>Answer"});
  EXPECT_EQ(AskOne(&steps, Thinking(UserChat())).content, "Answer");
  api.Say({TestApi::Bytes("a")[0], *api.tokenizer.AddedTokenId("</think>"), TestApi::Bytes("b")[0]});
  const SeenAnswer real = Ask(&api, Thinking(UserChat()));
  EXPECT_EQ(real.choices.at(0).reasoning, "a");
  EXPECT_EQ(real.choices.at(0).content, "b");
  EXPECT_EQ(real.usage.at("completion_tokens_details").at("reasoning_tokens"), 2);
  api.SayBytes("cut </thi");
  EXPECT_EQ(AskOne(&api, Thinking(UserChat())).reasoning, "cut </thi");
  Json hidden = Thinking(UserChat());
  hidden["include_reasoning"] = false;
  api.SayBytes(text);
  const Seen seen = AskOne(&api, hidden);
  EXPECT_EQ(seen.reasoning, "");
  EXPECT_EQ(seen.content, "Because.");
}

TEST(ChatStream, CallsWhateverTheCuts) {
  const std::string text =
      "why</think>Let me see." +
      Calls(Invoke("f", Parameter("cmd", true, "ls 2>&1") + Parameter("n", false, "[1, {\"a\": null}]")) +
            Invoke("g", Parameter("path", true, "/tmp")));
  TestApi api;
  Json body = Thinking(UserChat());
  body["tools"] = Tools();
  for (size_t chunk = 1; chunk < 40; ++chunk) {
    api.SayBytes(text, chunk);
    const Seen seen = AskOne(&api, body);
    EXPECT_EQ(seen.reasoning, "why");
    EXPECT_EQ(seen.content, "Let me see.");
    ASSERT_EQ(seen.calls.size(), 2u);
    EXPECT_EQ(seen.calls[0], (SeenCall{"f", R"({"cmd": "ls 2>&1", "n": [1, {"a": null}]})"}));
    EXPECT_EQ(seen.calls[1], (SeenCall{"g", R"({"path": "/tmp"})"}));
    EXPECT_EQ(seen.finish, "tool_calls");
  }
  for (const auto& exchange : {api.Post("/v1/chat/completions", body)}) {
    EXPECT_EQ(exchange->body.find(kDsml), std::string::npos);
  }
}

TEST(ChatStream, ValuesEndWhereTheirTagsBegin) {
  TestApi api;
  Json body = UserChat();
  body["tools"] = Tools();
  for (const char letter : std::string("parameterinvokecalls<>/｜")) {
    const std::string value = "find /tm" + std::string(1, letter);
    if (static_cast<unsigned char>(letter) >= 0x80) continue;
    api.SayBytes(Calls(Invoke("f", Parameter("c", true, value))));
    const Seen seen = AskOne(&api, body);
    ASSERT_EQ(seen.calls.size(), 1u);
    EXPECT_EQ(ParseJson(seen.calls[0].arguments, "a").at("c"), value);
    EXPECT_EQ(seen.content, "");
  }
}

TEST(ChatStream, ACallEndsReasoning) {
  TestApi api;
  Json body = Thinking(UserChat());
  body["tools"] = Tools();
  api.SayBytes("hmm" + Calls(Invoke("f", "")));
  const Seen seen = AskOne(&api, body);
  EXPECT_EQ(seen.reasoning, "hmm");
  EXPECT_EQ(seen.calls, (std::vector<SeenCall>{{"f", "{}"}}));
  api.SayBytes("</think>the tag <｜DSML｜ calls> is quoted");
  EXPECT_EQ(AskOne(&api, body).content, "the tag <｜DSML｜ calls> is quoted");
}

TEST(ChatStream, AnUnfinishedCallIsClosedAndNotToBeRun) {
  TestApi api;
  Json body = UserChat();
  body["tools"] = Tools();
  const std::string whole = Calls(Invoke("f", Parameter("c", true, "find /tmp")));
  for (size_t size = 1; size < whole.size(); ++size) {
    const std::string text = whole.substr(0, size);
    api.SayBytes(text);
    const Seen by_eos = AskOne(&api, body);
    Json cut = body;
    cut["max_tokens"] = size;
    api.SayBytes(whole);
    const Seen by_length = AskOne(&api, cut);
    EXPECT_EQ(by_eos.calls, by_length.calls);
    EXPECT_EQ(by_length.finish, "length") << text;
    const bool closed = text.find("</｜DSML｜ invoke>") != std::string::npos;
    EXPECT_EQ(by_eos.finish, closed ? "tool_calls" : "stop") << text;
  }
}

TEST(ChatStream, ArgumentsArriveWhileTheyAreWritten) {
  TestApi api;
  Json body = UserChat();
  body["tools"] = Tools();
  body["stream"] = true;
  api.SayBytes(Calls(Invoke("f", Parameter("text", true, std::string(2048, 'x')))), 4);
  const auto exchange = api.Post("/v1/chat/completions", body);
  size_t pieces = 0;
  for (const auto& [name, data] : exchange->events) pieces += data.find("xxxx") != std::string::npos;
  EXPECT_GT(pieces, 400u);
}

TEST(ChatStream, BehindTheBlockNothingCounts) {
  TestApi api;
  Json body = UserChat();
  body["tools"] = Tools();
  const std::string block = Calls(Invoke("f", ""));
  api.SayBytes(block + std::string(2000, 'y'));
  const SeenAnswer answer = Ask(&api, body);
  EXPECT_EQ(answer.choices.at(0).finish, "tool_calls");
  EXPECT_EQ(answer.usage.at("completion_tokens"), block.size() + 1);
  EXPECT_EQ(api.engine.stopped().size(), 2u);
}

TEST(ChatStream, OneCallWhereOneIsAskedFor) {
  TestApi api;
  Json body = UserChat();
  body["tools"] = Tools();
  body["parallel_tool_calls"] = false;
  api.SayBytes(Calls(Invoke("f", "") + Invoke("g", "")));
  const Seen seen = AskOne(&api, body);
  EXPECT_EQ(seen.calls, (std::vector<SeenCall>{{"f", "{}"}}));
  EXPECT_EQ(seen.finish, "tool_calls");
}

TEST(ChatStream, ForcedCalls) {
  TestApi api;
  Json body = Thinking(UserChat());
  body["tools"] = Tools();
  body["tool_choice"] = "required";
  api.SayBytes(Invoke("g", Parameter("a", true, "1")) + "</｜DSML｜ calls>");
  EXPECT_EQ(AskOne(&api, body).calls, (std::vector<SeenCall>{{"g", R"({"a": "1"})"}}));
  body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "f"}}}};
  api.SayBytes(Parameter("a", true, "1") + "</｜DSML｜ invoke>\n</｜DSML｜ calls>");
  EXPECT_EQ(AskOne(&api, body).calls, (std::vector<SeenCall>{{"f", R"({"a": "1"})"}}));
  const std::vector<int32_t> prompt = api.engine.submitted().back().prompt;
  EXPECT_TRUE(api.tokenizer.Decode(prompt, false)
                  .ends_with("<｜Assistant｜><think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n"));
  body["tool_choice"] = "none";
  api.SayBytes("</think>no");
  EXPECT_EQ(AskOne(&api, body).content, "no");
  EXPECT_EQ(api.tokenizer.Decode(api.engine.submitted().back().prompt, false).find("Tools"), std::string::npos);
}

TEST(ChatStream, ManyChoices) {
  TestApi api;
  api.engine.script = [](const GenerationRequest&, int choice) {
    return FakeScript{TestApi::Bytes(std::string(static_cast<size_t>(choice + 1), static_cast<char>('a' + choice))), 1,
                      false, false};
  };
  Json body = UserChat();
  body["n"] = 3;
  const SeenAnswer answer = Ask(&api, body);
  ASSERT_EQ(answer.choices.size(), 3u);
  EXPECT_EQ(answer.choices.at(0).content, "a");
  EXPECT_EQ(answer.choices.at(2).content, "ccc");
  EXPECT_EQ(answer.usage.at("completion_tokens"), 2 + 3 + 4);
}

TEST(ChatStream, UsageInEveryChunkAndWithTheCache) {
  TestApi api;
  api.engine.cached_tokens = 3;
  api.SayBytes("abc");
  Json body = UserChat();
  const SeenAnswer answer = Ask(&api, body);
  const int64_t prompt = answer.usage.at("prompt_tokens");
  EXPECT_EQ(answer.usage.at("prompt_tokens_details").at("cached_tokens"), 3);
  EXPECT_EQ(answer.usage.at("completion_tokens"), 4);
  EXPECT_EQ(answer.usage.at("total_tokens"), prompt + 4);
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", true}};
  int64_t last = 0;
  const auto exchange = api.Post("/v1/chat/completions", body);
  for (size_t i = 0; i + 1 < exchange->events.size(); ++i) {
    const Json usage = ParseJson(exchange->events[i].second, "chunk").at("usage");
    EXPECT_GE(usage.at("completion_tokens"), last);
    last = usage.at("completion_tokens");
  }
  EXPECT_EQ(last, 4);
  body["stream_options"] = {{"include_usage", false}};
  ChatStreamSeen(*api.Post("/v1/chat/completions", body), false);
}

TEST(ChatStream, FailuresInsideAStreamAreToldThere) {
  TestApi api;
  api.engine.script = [](const GenerationRequest&, int) { return FakeScript{TestApi::Bytes("ab"), 1, false, true}; };
  Json body = UserChat();
  ExpectError(*api.Post("/v1/chat/completions", body), 500);
  body["stream"] = true;
  const auto exchange = api.Post("/v1/chat/completions", body);
  ASSERT_GE(exchange->events.size(), 2u);
  EXPECT_EQ(exchange->events.back().second, "[DONE]");
  const Json error = ParseJson(exchange->events[exchange->events.size() - 2].second, "e").at("error");
  EXPECT_EQ(error.at("type"), "server_error");
  EXPECT_EQ(error.at("message").get<std::string>().find("page"), std::string::npos);
  EXPECT_NE(api.records().back().error.find("page"), std::string::npos);
}

TEST(ChatStream, TheClientThatLeavesIsCancelled) {
  TestApi api;
  api.SayBytes(std::string(3000, 'x'));
  api.engine.Hold(true);
  Json body = UserChat();
  body["n"] = 4;
  body["stream"] = true;
  const auto exchange = api.Begin("/v1/chat/completions", DumpJson(body));
  EXPECT_TRUE(exchange->begun) << "headers come before the first token";
  exchange->Leave();
  EXPECT_TRUE(api.engine.Idle());
  EXPECT_EQ(api.engine.cancelled(), std::set<uint64_t>{1});
  api.context->output_workers().Stop();
  ASSERT_EQ(api.records().size(), 1u);
  EXPECT_EQ(api.records()[0].status, 499);
}

TEST(ChatStream, ShutdownIsToldToThoseWhoWait) {
  TestApi api;
  api.engine.Hold(true);
  const auto whole = api.Begin("/v1/chat/completions", DumpJson(UserChat()));
  Json body = UserChat();
  body["stream"] = true;
  const auto stream = api.Begin("/v1/chat/completions", DumpJson(body));
  api.engine.Shutdown();
  EXPECT_TRUE(whole->Wait() && stream->Wait());
  ExpectError(*whole, 503);
  EXPECT_EQ(whole->Header("Retry-After"), "1");
  EXPECT_NE(stream->events.front().second.find("shutting down"), std::string::npos);
  ExpectError(*api.Post("/v1/chat/completions", UserChat()), 503, "", "overloaded");
}

// What a success is counted by: only requests that the engine took are finished ones.
TEST(ChatStream, OnlyWhatTheEngineTookIsCounted) {
  TestApi api;
  api.SayBytes("abc");
  const auto ends = [&] { return api.metrics.Ends(); };
  for (const char* path : {"/v1/models", "/v1/models/senko-test", "/v1/models/other"}) {
    EXPECT_TRUE(api.Begin(path, "", "GET")->Wait());
  }
  api.Post("/tokenize", Json{{"prompt", "a"}});
  api.Post("/detokenize", Json{{"tokens", {20}}});
  Json messages = UserChat();
  api.Post("/v1/messages/count_tokens", messages);
  api.Post("/v1/chat/completions", Json::object());
  api.Post("/v1/chat/completions", std::string("nonsense"));
  api.engine.on_submit = [](const GenerationRequest&) { throw Error(ErrorCode::kOverloaded, "full"); };
  ExpectError(*api.Post("/v1/chat/completions", UserChat()), 503);
  api.engine.on_submit = {};
  EXPECT_EQ(api.records().size(), 9u);  // told to the log all the same
  EXPECT_EQ(ends(), std::vector<std::string>());
  api.Post("/v1/chat/completions", UserChat());
  api.engine.script = [](const GenerationRequest&, int) { return FakeScript{TestApi::Bytes("ab"), 1, false, true}; };
  api.Post("/v1/chat/completions", UserChat());
  api.engine.Idle();
  api.context->output_workers().Stop();
  // An answer is sent before it is counted, so the second may be counted first.
  EXPECT_THAT(ends(), testing::UnorderedElementsAre("stop", "error"));
}

TEST(ChatStream, OneRecordForEachRequest) {
  TestApi api;
  api.SayBytes("abc");
  api.Post("/v1/chat/completions", UserChat());
  api.Post("/v1/chat/completions", Json::object());
  api.engine.Idle();
  api.context->output_workers().Stop();
  const auto records = api.records();
  ASSERT_EQ(records.size(), 2u);
  for (const RequestRecord& record : records) {
    EXPECT_EQ(record.route, "/v1/chat/completions");
    EXPECT_EQ(record.id, "request-1");
    EXPECT_GE(record.total_s, 0);
    EXPECT_EQ(record.model, "senko-test");
    EXPECT_EQ(record.submitted, record.status == 200);
    if (record.status != 200) continue;
    EXPECT_EQ(record.finish, "stop");
    EXPECT_EQ(record.completion_tokens, 4);
    EXPECT_GE(record.first_token_s, record.queue_s);
    EXPECT_GE(record.queue_s, 0);
  }
}

}  // namespace
}  // namespace senko::api
