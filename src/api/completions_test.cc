// /v1/completions, logprobs of both shapes, /tokenize, /v1/models (behaviours.md, 4, 6 and 8).
#include <gtest/gtest.h>

#include "api/test_streams.h"

namespace senko::api {
namespace {

constexpr char kPath[] = "/v1/completions";

SeenAnswer Ask(TestApi* api, Json body) {
  const SeenAnswer whole = CompletionWholeSeen(*api->Post(kPath, body));
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const SeenAnswer stream = CompletionStreamSeen(*api->Post(kPath, body));
  EXPECT_EQ(whole.choices, stream.choices);
  EXPECT_EQ(whole.usage, stream.usage);
  return whole;
}

std::string Joined(const Json& tokens) {
  std::string bytes;
  for (const Json& token : tokens) {
    for (const Json& byte : token.at("bytes")) bytes.push_back(static_cast<char>(byte.get<int>()));
  }
  return bytes;
}

TEST(Completions, EveryKindOfPrompt) {
  TestApi api;
  api.engine.script = [](const GenerationRequest& request, int choice) {
    // Says the prompt's length, so that answers can be told apart.
    return FakeScript{TestApi::Bytes(std::to_string(request.prompt.size()) + "/" + std::to_string(choice)), 1, false,
                      false};
  };
  const Json ids = {20, 21, 22};
  const std::vector<std::pair<Json, std::vector<std::string>>> prompts = {
      {"abc", {"3/0"}},
      {ids, {"3/0"}},
      {Json::array({"a", "bb"}), {"1/0", "2/0"}},
      {Json::array({ids, Json::array({20})}), {"3/0", "1/0"}},
      {Json::array({"a"}), {"1/0"}},
      {"<｜User｜>x</think>", {"3/0"}},
  };
  for (const auto& [prompt, expected] : prompts) {
    const SeenAnswer answer = Ask(&api, {{"prompt", prompt}});
    ASSERT_EQ(answer.choices.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_EQ(answer.choices.at(static_cast<int64_t>(i)).content, expected[i]);
  }
  const SeenAnswer many = Ask(&api, {{"prompt", {"a", "bb"}}, {"n", 2}});
  EXPECT_EQ(many.choices.at(1).content, "1/1");
  EXPECT_EQ(many.choices.at(2).content, "2/0");
  EXPECT_EQ(many.usage.at("prompt_tokens"), 3);
}

TEST(Completions, PromptsThatAreNone) {
  TestApi api;
  const int64_t v = api.tokenizer.vocab_size();
  const int32_t image = *api.tokenizer.AddedTokenId("<｜deepseek_image｜>");
  const std::vector<std::pair<Json, std::string>> bad = {
      {nullptr, "prompt"},
      {"", "prompt"},
      {Json::array(), "prompt"},
      {3, "prompt"},
      {Json::object(), "prompt"},
      {Json::array({"a", ""}), "prompt[1]"},
      {Json::array({"a", 3}), "prompt[1]"},
      {Json::array({20, "a"}), "prompt"},
      {Json::array({v}), "prompt"},
      {Json::array({-1}), "prompt"},
      {Json::array({1.5}), "prompt"},
      {Json::array({int64_t{1} << 31}), "prompt"},
      {Json::array({UINT64_MAX}), "prompt"},
      {Json::array({Json::array({20}), Json::array({v + 1})}), "prompt[1]"},
      {Json::array({Json::array()}), "prompt[0]"},
      {Json::array({image}), "prompt"},
      {"<｜deepseek_image｜>", "prompt"}};
  for (const auto& [prompt, param] : bad) {
    SCOPED_TRACE(DumpJson(prompt));
    ExpectError(*api.Post(kPath, Json{{"prompt", prompt}}), 400, param);
  }
  ExpectError(*api.Post(kPath, Json{{"prompt", std::vector<std::string>(1025, "a")}}), 400, "prompt");
  ExpectError(*api.Post(kPath, Json{{"prompt", std::vector<std::string>(100, "a")}, {"n", 30}}), 400, "n");
  for (const auto& [field, value] : std::vector<std::pair<std::string, Json>>{{"suffix", "x"},
                                                                              {"best_of", 2},
                                                                              {"logprobs", true},
                                                                              {"logprobs", 21},
                                                                              {"echo", "x"},
                                                                              {"max_tokens", 0},
                                                                              {"messages", {1}},
                                                                              {"tools", {1}},
                                                                              {"guided_json", "{}"},
                                                                              {"other", 1}}) {
    ExpectError(*api.Post(kPath, Json{{"prompt", "a"}, {field, value}}), 400, field);
  }
  ExpectError(*api.Post(kPath, Json{{"prompt", "a"}, {"response_format", {{"type", "json_object"}}}}), 400,
              "response_format.type");
  EXPECT_TRUE(api.engine.submitted().empty());
  EXPECT_EQ(api.Post(kPath, Json{{"prompt", "a"}, {"suffix", nullptr}, {"best_of", 1}})->status, 200);
}

TEST(Completions, HowMuch) {
  TestApi api({}, 100);
  api.Post(kPath, Json{{"prompt", "abc"}});
  EXPECT_EQ(api.engine.submitted().back().sampling.max_tokens, 16);
  api.Post(kPath, Json{{"prompt", std::string(95, 'a')}});
  EXPECT_EQ(api.engine.submitted().back().sampling.max_tokens, 5);
  api.Post(kPath, Json{{"prompt", std::string(95, 'a')}, {"max_tokens", 5}});
  EXPECT_EQ(api.engine.submitted().back().sampling.max_tokens, 5);
  ExpectError(*api.Post(kPath, Json{{"prompt", std::string(95, 'a')}, {"max_tokens", 6}}), 400, "max_tokens",
              "context_length_exceeded");
  ExpectError(*api.Post(kPath, Json{{"prompt", std::string(100, 'a')}}), 400, "prompt", "context_length_exceeded");
}

TEST(Completions, OneRefusedOfManyLeavesNothing) {
  TestApi api;
  api.SayBytes(std::string(1000, 'x'));
  int count = 0;
  api.engine.on_submit = [&](const GenerationRequest&) {
    if (++count == 3) throw Error(ErrorCode::kOverloaded, "full");
  };
  ExpectError(*api.Post(kPath, Json{{"prompt", {"a", "b", "c", "d"}}, {"max_tokens", 1000}, {"stream", true}}), 503);
  EXPECT_TRUE(api.engine.Idle());
  EXPECT_EQ(api.engine.cancelled(), (std::set<uint64_t>{1, 2}));
}

TEST(Completions, TextIsRaw) {
  TestApi api;
  const std::string text = "a</think>b\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">";
  api.SayBytes(text);
  EXPECT_EQ(Ask(&api, {{"prompt", "x"}, {"max_tokens", 500}}).choices.at(0).content, text);
  api.SayBytes("one STOP two");
  const SeenAnswer stopped = Ask(&api, {{"prompt", "x"}, {"max_tokens", 500}, {"stop", "STOP"}});
  EXPECT_EQ(stopped.choices.at(0).content, "one ");
  EXPECT_EQ(stopped.choices.at(0).stop, "STOP");
  api.Say({TestApi::Bytes("a")[0], 0, TestApi::Bytes("b")[0]});
  EXPECT_EQ(Ask(&api, {{"prompt", "x"}}).choices.at(0).content, "ab");
  EXPECT_EQ(Ask(&api, {{"prompt", "x"}, {"skip_special_tokens", false}}).choices.at(0).content,
            "a<｜begin▁of▁sentence｜>b");
}

TEST(Completions, Echo) {
  TestApi api;
  api.SayBytes("!");
  EXPECT_EQ(Ask(&api, {{"prompt", "<｜User｜>né"}, {"echo", true}}).choices.at(0).content, "<｜User｜>né!");
  EXPECT_EQ(Ask(&api, {{"prompt", {3, 20}}, {"echo", true}}).choices.at(0).content, "<｜User｜>\x02!");
  const SeenAnswer both = Ask(&api, {{"prompt", {"a", "b"}}, {"echo", true}, {"n", 2}});
  EXPECT_EQ(both.choices.at(1).content, "a!");
  EXPECT_EQ(both.choices.at(2).content, "b!");

  // Scores every position; the first has nothing before it.
  const SeenAnswer scored = Ask(&api, {{"prompt", "ab🌍"}, {"echo", true}, {"logprobs", 2}});
  const Json& logprobs = scored.choices.at(0).logprobs;
  EXPECT_EQ(logprobs.at("tokens"), (Json{"a", "b", "bytes:\\xf0", "bytes:\\x9f", "bytes:\\x8c", "bytes:\\x8d", "!"}));
  EXPECT_EQ(logprobs.at("text_offset"), (Json{0, 1, 2, 2, 2, 2, 3}));
  EXPECT_TRUE(logprobs.at("token_logprobs")[0].is_null());
  const std::vector<int32_t> ids = TestApi::Bytes("ab🌍!");
  for (size_t i = 1; i < ids.size(); ++i) {
    EXPECT_EQ(logprobs.at("token_logprobs")[i], FakeEngine::Logprob(ids[i], 0));
    EXPECT_EQ(logprobs.at("top_logprobs")[i].size(), 2u);
    EXPECT_TRUE(logprobs.at("top_logprobs")[i].contains(logprobs.at("tokens")[i].get<std::string>()));
  }
  // The prompt alone: nothing is generated for it.
  const SeenAnswer alone = Ask(&api, {{"prompt", "ab"}, {"echo", true}, {"logprobs", 0}, {"max_tokens", 0}});
  EXPECT_EQ(alone.choices.at(0).content, "ab");
  EXPECT_EQ(alone.choices.at(0).logprobs.at("tokens").size(), 2u);
  EXPECT_EQ(alone.usage.at("completion_tokens"), 0);
}

TEST(Completions, LegacyLogprobs) {
  TestApi api({"a", "a", "\xF0\x9F", "\x8C\x8D", "é"});
  const SeenAnswer answer = Ask(&api, {{"prompt", "x"}, {"logprobs", 3}});
  EXPECT_EQ(answer.choices.at(0).content, "aa🌍é");
  const Json& logprobs = answer.choices.at(0).logprobs;
  EXPECT_EQ(logprobs.at("tokens"), (Json{"a", "a", "bytes:\\xf0\\x9f", "bytes:\\x8c\\x8d", "é"}));
  EXPECT_EQ(logprobs.at("text_offset"), (Json{0, 1, 2, 2, 3}));
  // Two ids that are both spelled "a" are one key of an object.
  EXPECT_EQ(logprobs.at("top_logprobs")[0].size(), 2u);
  EXPECT_EQ(logprobs.at("top_logprobs")[0].at("a"), FakeEngine::Logprob(kFirstStep, 0));
}

TEST(Completions, PromptLogprobs) {
  TestApi api;
  const Json answer = api.Post(kPath, Json{{"prompt", "ab"}, {"prompt_logprobs", 2}})->json();
  const Json& prompt = answer.at("choices")[0].at("prompt_logprobs");
  ASSERT_EQ(prompt.size(), 2u);
  EXPECT_TRUE(prompt[0].is_null());
  const int32_t b = TestApi::Bytes("b")[0];
  EXPECT_EQ(prompt[1].at(std::to_string(b)),
            (Json{{"logprob", FakeEngine::Logprob(b, 0)}, {"rank", 1}, {"decoded_token", "b"}}));
  EXPECT_EQ(prompt[1].size(), 2u);
  EXPECT_TRUE(answer.at("choices")[0].at("logprobs").is_null());
  const Json chat = api.Post("/v1/chat/completions",
                             Json{{"messages", {{{"role", "user"}, {"content", "x"}}}}, {"prompt_logprobs", 0}})
                        ->json();
  EXPECT_EQ(chat.at("prompt_logprobs").size(), api.engine.submitted().back().prompt.size());
}

TEST(ChatLogprobs, BytesJoinedAreTheText) {
  for (const size_t chunk : {1, 3, 50}) {
    TestApi api;
    const std::string text = "né 🌍 \u0301x";
    api.SayBytes(text, chunk);
    for (int top = 0; top <= kMaxLogprobs; top += 5) {
      Json body = UserChat();
      body["logprobs"] = true;
      body["top_logprobs"] = top;
      const SeenAnswer whole = ChatWholeSeen(*api.Post("/v1/chat/completions", body));
      body["stream"] = true;
      body["stream_options"] = {{"include_usage", true}};
      EXPECT_EQ(whole.choices, ChatStreamSeen(*api.Post("/v1/chat/completions", body)).choices);
      const Json& tokens = whole.choices.at(0).logprobs;
      EXPECT_EQ(tokens.size(), text.size());
      EXPECT_EQ(Joined(tokens), text);
      for (size_t i = 0; i < tokens.size(); ++i) {
        const int32_t id = TestApi::Bytes(text)[i];
        EXPECT_EQ(tokens[i].at("logprob"), FakeEngine::Logprob(id, 0));
        ASSERT_EQ(tokens[i].at("top_logprobs").size(), static_cast<size_t>(top));
        if (top > 0) {
          EXPECT_EQ(tokens[i].at("top_logprobs")[0].at("bytes"), tokens[i].at("bytes"));
        }
      }
      EXPECT_EQ(tokens[0].at("token"), "n");
      EXPECT_EQ(tokens[1].at("token"), "\uFFFD");
    }
  }
}

TEST(ChatLogprobs, EachTokenWhereItsTextIs) {
  const std::string call = "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  for (size_t chunk = 1; chunk < 12; ++chunk) {
    TestApi api;
    api.SayBytes("why</think>say 🌍" + call, chunk);
    Json body = UserChat();
    body["logprobs"] = true;
    body["chat_template_kwargs"] = {{"thinking", true}};
    body["tools"] = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
    const SeenAnswer whole = ChatWholeSeen(*api.Post("/v1/chat/completions", body));
    EXPECT_EQ(Joined(whole.choices.at(0).reasoning_logprobs), "why");
    EXPECT_EQ(Joined(whole.choices.at(0).logprobs), "say 🌍");
    body["stream"] = true;
    EXPECT_EQ(whole.choices, ChatStreamSeen(*api.Post("/v1/chat/completions", body), false).choices);
    // What a stop string cuts off has no logprobs either.
    body["stream"] = false;
    api.SayBytes("why</think>say STOP", chunk);
    body["stop"] = "STOP";
    EXPECT_EQ(Joined(ChatWholeSeen(*api.Post("/v1/chat/completions", body)).choices.at(0).logprobs), "say ");
    api.SayBytes("why</think>say ST", chunk);
    EXPECT_EQ(Joined(ChatWholeSeen(*api.Post("/v1/chat/completions", body)).choices.at(0).logprobs), "say ST");
  }
  // Special tokens have no text and so no bytes.
  TestApi api;
  api.Say({TestApi::Bytes("a")[0], 2, 2});
  Json body = UserChat();
  body["logprobs"] = true;
  const Json tokens = ChatWholeSeen(*api.Post("/v1/chat/completions", body)).choices.at(0).logprobs;
  ASSERT_EQ(tokens.size(), 3u);
  EXPECT_TRUE(tokens[2].at("bytes").is_null());
}

TEST(Tokenize, PromptsAndChats) {
  TestApi api;
  const auto ids = [&](const Json& body) {
    const auto exchange = api.Post("/tokenize", body);
    EXPECT_EQ(exchange->status, 200) << exchange->body;
    const Json answer = exchange->json();
    EXPECT_EQ(answer.at("count"), answer.at("tokens").size());
    EXPECT_EQ(answer.at("max_model_len"), 4096);
    return answer.at("tokens").get<std::vector<int32_t>>();
  };
  EXPECT_EQ(ids({{"prompt", "<think>a"}}), (std::vector<int32_t>{5, TestApi::Bytes("a")[0]}));
  EXPECT_EQ(ids({{"prompt", "<think>a"}, {"parse_special", false}}), TestApi::Bytes("<think>a"));
  EXPECT_EQ(ids({{"prompt", ""}}), std::vector<int32_t>());
  const std::vector<int32_t> chat = ids(UserChat("<think>"));
  api.Post("/v1/chat/completions", UserChat("<think>"));
  EXPECT_EQ(api.engine.submitted().back().prompt, chat);
  const Json strings = api.Post("/tokenize", Json{{"prompt", "a b"}, {"return_token_strs", true}})->json();
  EXPECT_EQ(strings.at("token_strs"), (Json{"a", "Ġ", "b"}));
  for (const auto& [body, param] :
       std::vector<std::pair<Json, std::string>>{{Json::object(), "prompt"},
                                                 {{{"prompt", 3}}, "prompt"},
                                                 {{{"prompt", "a"}, {"x", 1}}, "x"},
                                                 {{{"messages", Json::array()}}, "messages"}}) {
    ExpectError(*api.Post("/tokenize", body), 400, param);
  }
}

TEST(Detokenize, IdsToText) {
  TestApi api({"\xF0\x9F"});
  const auto text = [&](const Json& tokens) {
    return api.Post("/detokenize", Json{{"tokens", tokens}})->json().at("prompt");
  };
  EXPECT_EQ(text({5, TestApi::Bytes("a")[0]}), "<think>a");
  EXPECT_EQ(text({kFirstStep}), "\uFFFD");
  EXPECT_EQ(text(Json::array()), "");
  for (const Json& bad : {Json({-1}), Json::array({api.tokenizer.vocab_size()}), Json::array({"a"}),
                          Json::array({1e30}), Json("a"), Json()}) {
    ExpectError(*api.Post("/detokenize", Json{{"tokens", bad}}), 400, "tokens");
  }
}

// What it names are single tokens of the tokenizer that /tokenize uses.
TEST(TokenizerInfo, NamesTheEnds) {
  TestApi api;
  auto exchange = api.Begin("/tokenizer_info", "", "GET");
  ASSERT_TRUE(exchange->Wait());
  EXPECT_EQ(exchange->status, 200);
  const Json info = exchange->json();
  EXPECT_EQ(info.at("model_max_length"), 4096);
  EXPECT_TRUE(info.at("chat_template").is_null());
  EXPECT_EQ(info.at("add_bos_token"), false);
  const Json chat = api.Post("/tokenize", UserChat("a"))->json().at("tokens");
  const Json begin = api.Post("/tokenize", Json{{"prompt", info.at("bos_token")}})->json().at("tokens");
  EXPECT_EQ(begin, Json::array({chat.at(0)}));
  const Json end = api.Post("/tokenize", Json{{"prompt", info.at("eos_token")}})->json().at("tokens");
  ASSERT_EQ(end.size(), 1u);
  EXPECT_NE(end, begin);
}

TEST(Models, Listed) {
  TestApi api;
  const auto get = [&](const std::string& path) {
    auto exchange = api.Begin(path, "", "GET");
    EXPECT_TRUE(exchange->Wait());
    return exchange;
  };
  const Json list = get("/v1/models")->json();
  EXPECT_EQ(list.at("data").size(), 2u);
  EXPECT_EQ(list.at("data")[0].at("id"), "senko-test");
  EXPECT_EQ(list.at("data")[0].at("max_model_len"), 4096);
  EXPECT_EQ(get("/v1/models/an/alias")->json().at("id"), "an/alias");
  ExpectError(*get("/v1/models/an%2Falias"), 404, "model");  // a path comes decoded, and is not decoded again
  ExpectError(*get("/v1/models/gpt"), 404, "model", "model_not_found");
  ExpectError(*get("/v1/models/"), 404);
}

}  // namespace
}  // namespace senko::api
