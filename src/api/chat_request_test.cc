// What the fields of a chat completion take, refuse and make of it (behaviours.md, 3 and 4).
#include <gtest/gtest.h>

#include "api/test_api.h"

namespace senko::api {
namespace {

constexpr char kPath[] = "/v1/chat/completions";

TEST(ChatRequest, NumbersOutOfRangeAreRefusedByName) {
  TestApi api;
  const std::vector<std::string> never = {"\"0.7\"", "true", "[]", "{}", "-1e300", "1e300", "\"\""};
  const std::vector<std::pair<std::string, std::vector<std::string>>> fields = {
      {"temperature", {"-1", "-0.001", "1001"}},
      {"top_p", {"0", "-0.0", "2", "1.0001", "-1", "1e-60"}},
      {"min_p", {"-0.1", "1.1"}},
      {"top_k", {"-2", "1.5", "4294967296"}},
      {"n", {"0", "-1", "129", "1.5"}},
      {"max_tokens", {"0", "-1", "-2", "9223372036854775808", "1.5", "18446744073709551616"}},
      {"max_completion_tokens", {"0", "-1", "9223372036854775808"}},
      {"min_tokens", {"-1"}},
      {"presence_penalty", {"-2.1", "2.1"}},
      {"frequency_penalty", {"-2.1", "2.1"}},
      {"repetition_penalty", {"0", "-1", "1001"}},
      {"seed", {"9223372036854775808", "1180591620717411303424", "-9223372036854775809", "0.5"}},
      {"top_logprobs", {"-1", "21"}},
      {"prompt_logprobs", {"-1", "21"}},
      {"priority", {"2147483648"}},
  };
  for (const auto& [field, values] : fields) {
    for (const auto* list : {&never, &values}) {
      for (const std::string& value : *list) {
        if (value == "true" && field == "logprobs") continue;
        SCOPED_TRACE(field + " " + value);
        ExpectError(*api.Post(kPath, RawChat(field, value)), 400, field);
      }
    }
    // Not JSON at all, or no number that a double holds.
    for (const char* value : {"NaN", "Infinity", "-Infinity", "1e999", "-1e999", "nan", "+1", ".5", "01"}) {
      SCOPED_TRACE(field + " " + value);
      ExpectError(*api.Post(kPath, RawChat(field, value)), 400, field);
    }
    EXPECT_EQ(api.Post(kPath, RawChat(field, "null"))->status, 200);
  }
  EXPECT_EQ(api.engine.submitted().size(), fields.size());
}

TEST(ChatRequest, SamplingReachesTheEngine) {
  TestApi api;
  Json body = UserChat();
  const Json fields = {{"temperature", 0.5},
                       {"top_p", 0.25},
                       {"min_p", 0.125},
                       {"top_k", 7},
                       {"presence_penalty", -1.5},
                       {"seed", -1},
                       {"frequency_penalty", 1},
                       {"repetition_penalty", 1.5},
                       {"logit_bias", {{"5", -100}, {"6", 2.5}}},
                       {"n", 2},
                       {"max_tokens", 9},
                       {"min_tokens", 3},
                       {"ignore_eos", true},
                       {"stop_token_ids", {20, 21}},
                       {"priority", -4},
                       {"cache_salt", "s"},
                       {"bad_words", {"ab"}},
                       {"logprobs", true},
                       {"top_logprobs", 4},
                       {"prompt_logprobs", 2}};
  for (const auto& [name, value] : fields.items()) body[name] = value;
  EXPECT_EQ(api.Post(kPath, body)->status, 200);
  const GenerationRequest request = api.engine.submitted().at(0);
  const SamplingOptions& s = request.sampling;
  EXPECT_EQ(request.id, "request-1");
  EXPECT_EQ(request.n, 2);
  EXPECT_EQ(request.priority, -4);
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_EQ(s.temperature, 0.5f);
  EXPECT_EQ(s.top_p, 0.25f);
  EXPECT_EQ(s.min_p, 0.125f);
  EXPECT_EQ(s.top_k, 7);
  EXPECT_EQ(s.presence_penalty, -1.5f);
  EXPECT_EQ(s.frequency_penalty, 1.0f);
  EXPECT_EQ(s.repetition_penalty, 1.5f);
  EXPECT_EQ(s.seed, UINT64_MAX);
  EXPECT_EQ(s.logit_bias, (std::vector<std::pair<int32_t, float>>{{5, -100}, {6, 2.5}}));
  EXPECT_EQ(s.bad_words, (std::vector<std::vector<int32_t>>{TestApi::Bytes("ab"), TestApi::Bytes(" ab")}));
  EXPECT_EQ(s.max_tokens, 9);
  EXPECT_EQ(s.min_tokens, 3);
  EXPECT_TRUE(s.ignore_eos);
  EXPECT_EQ(s.stop_token_ids, (std::vector<int32_t>{20, 21}));
  EXPECT_EQ(s.logprobs, 4);
  EXPECT_EQ(s.prompt_logprobs, 2);

  for (const char* value : {"-0.0", "0", "1e-5", "1e-12", "100"}) {
    EXPECT_EQ(api.Post(kPath, RawChat("temperature", value))->status, 200) << value;
  }
  EXPECT_EQ(api.Post(kPath, ChatWith("logprobs", true))->status, 200);
  EXPECT_EQ(api.engine.submitted().back().sampling.logprobs, 0);
  EXPECT_EQ(api.Post(kPath, ChatWith("top_k", -1))->status, 200);
  EXPECT_EQ(api.engine.submitted().back().sampling.top_k, 0);
  EXPECT_EQ(api.Post(kPath, UserChat())->status, 200);
  EXPECT_FALSE(api.engine.submitted().back().sampling.seed.has_value());
}

TEST(ChatRequest, IdsOutsideTheVocabulary) {
  TestApi api;
  const int64_t v = api.tokenizer.vocab_size();
  for (const std::string& id : {std::to_string(v), std::to_string(v + 1), std::string("-1"), std::string("2147483648"),
                                std::string("9223372036854775808"), std::string("x"), std::string("1.5")}) {
    ExpectError(*api.Post(kPath, RawChat("logit_bias", "{\"" + id + "\":1}")), 400, "logit_bias");
    if (id != "x") ExpectError(*api.Post(kPath, RawChat("stop_token_ids", "[" + id + "]")), 400, "stop_token_ids");
  }
  ExpectError(*api.Post(kPath, RawChat("logit_bias", "{\"5\":101}")), 400, "logit_bias");
  ExpectError(*api.Post(kPath, RawChat("logit_bias", "{\"5\":\"1\"}")), 400, "logit_bias");
  EXPECT_TRUE(api.engine.submitted().empty());
}

TEST(ChatRequest, Stops) {
  TestApi api;
  for (const char* bad : {"\"\"", "[\"\"]", "[\"a\",\"\"]", "1", "[1]", "{}", "[[\"a\"]]"}) {
    ExpectError(*api.Post(kPath, RawChat("stop", bad)), 400, "stop");
  }
  ExpectError(*api.Post(kPath, ChatWith("stop", Json(std::vector<std::string>(65, "a")))), 400, "stop");
  for (const char* good : {"null", "\"a\"", "[]", "[\"a\",\"bc\"]"}) {
    EXPECT_EQ(api.Post(kPath, RawChat("stop", good))->status, 200) << good;
  }
}

TEST(ChatRequest, WhatIsNotDoneIsRefusedByName) {
  TestApi api;
  const Json schema = {{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"schema", {{"type", "nonsense"}}}}}};
  const std::vector<std::pair<std::string, Json>> refused = {{"guided_json", Json::object({{"type", "object"}})},
                                                             {"guided_regex", "a+"},
                                                             {"guided_choice", {"a"}},
                                                             {"guided_grammar", "root ::= \"a\""},
                                                             {"structured_outputs", {{"json", "{}"}}},
                                                             {"grammar", "x"},
                                                             {"logits_processors", {"x"}},
                                                             {"allowed_token_ids", {1}},
                                                             {"use_beam_search", true},
                                                             {"truncate_prompt_tokens", 5},
                                                             {"functions", {{{"name", "f"}}}},
                                                             {"function_call", "auto"},
                                                             {"audio", {{"voice", "x"}}},
                                                             {"modalities", {"text", "audio"}},
                                                             {"web_search_options", {{"a", 1}}},
                                                             {"documents", {"x"}},
                                                             {"chat_template", "x"},
                                                             {"verbosity", "low"},
                                                             {"echo", true},
                                                             {"no_such_field", 1},
                                                             {"Temperature", 1}};
  for (const auto& [field, value] : refused) ExpectError(*api.Post(kPath, ChatWith(field, value)), 400, field);
  for (const Json& format :
       {schema, Json{{"type", "json_object"}}, Json{{"type", "grammar"}}, Json{{"type", 1}}, Json::object()}) {
    ExpectError(*api.Post(kPath, ChatWith("response_format", format)), 400, "response_format.type");
  }
  EXPECT_TRUE(api.engine.submitted().empty());
  Json harmless = UserChat();
  const Json fields = {{"user", "u"},
                       {"store", true},
                       {"metadata", {{"a", "b"}}},
                       {"service_tier", "auto"},
                       {"prompt_cache_key", "k"},
                       {"response_format", {{"type", "text"}}},
                       {"guided_json", nullptr},
                       {"use_beam_search", false},
                       {"verbosity", "medium"},
                       {"modalities", {"text"}},
                       {"model", "an/alias"}};
  for (const auto& [name, value] : fields.items()) harmless[name] = value;
  EXPECT_EQ(api.Post(kPath, harmless)->status, 200);
  ExpectError(*api.Post(kPath, ChatWith("model", "gpt")), 404, "model", "model_not_found");
}

TEST(ChatRequest, TheContextIsOneRule) {
  constexpr int64_t kLimit = 200;
  TestApi api({}, kLimit);
  api.SayBytes("ok");
  const auto body_of = [&](int64_t prompt_tokens) {
    // Byte tokens: the prompt is the template's few tokens and one for each letter.
    const Json count = api.Post("/tokenize", UserChat(""))->json();
    return UserChat(std::string(static_cast<size_t>(prompt_tokens - count.at("count").get<int64_t>()), 'x'));
  };
  for (const int64_t prompt : {kLimit - 40, kLimit - 1, kLimit, kLimit + 1, 10 * kLimit}) {
    const int64_t rest = kLimit - prompt;
    for (const char* field : {"max_tokens", "max_completion_tokens"}) {
      for (const int64_t asked : {int64_t{1}, rest, rest + 1, int64_t{1} << 31, INT64_MAX}) {
        Json body = body_of(prompt);
        body["stream"] = true;  // before any event
        body[field] = asked;
        if (asked < 1) continue;
        SCOPED_TRACE(std::to_string(prompt) + " " + std::to_string(asked));
        const auto exchange = api.Post(kPath, body);
        if (asked <= rest) {
          EXPECT_EQ(exchange->status, 200) << exchange->body;
          EXPECT_EQ(api.engine.submitted().back().sampling.max_tokens, asked);
          continue;
        }
        ExpectError(*exchange, 400, "", "context_length_exceeded");
        const std::string message = exchange->json().at("error").at("message");
        for (const int64_t number : {kLimit, prompt, asked}) {
          EXPECT_NE(message.find(std::to_string(number)), std::string::npos) << message;
        }
      }
    }
    const auto exchange = api.Post(kPath, body_of(prompt));
    if (rest >= 1) {
      EXPECT_EQ(api.engine.submitted().back().sampling.max_tokens, rest);
    } else {
      ExpectError(*exchange, 400, "", "context_length_exceeded");
    }
  }
  Json body = UserChat();
  body["max_tokens"] = 3;
  body["min_tokens"] = 4;
  ExpectError(*api.Post(kPath, body), 400, "min_tokens");
  body["max_completion_tokens"] = 4;
  ExpectError(*api.Post(kPath, body), 400, "max_completion_tokens");
}

TEST(ChatRequest, StreamOptions) {
  TestApi api;
  ExpectError(*api.Post(kPath, ChatWith("stream_options", {{"include_usage", true}})), 400, "stream_options");
  ExpectError(*api.Post(kPath, ChatWith("stream", "yes")), 400, "stream");
  Json body = ChatWith("stream", true);
  body["stream_options"] = {{"other", true}};
  ExpectError(*api.Post(kPath, body), 400, "stream_options.other");
  body = ChatWith("prompt_logprobs", 1);
  body["stream"] = true;
  ExpectError(*api.Post(kPath, body), 400, "prompt_logprobs");
  ExpectError(*api.Post(kPath, ChatWith("top_logprobs", 2)), 400, "top_logprobs");
}

TEST(ChatRequest, PrioritiesAreHonouredWhereTheServerSaysSo) {
  TestApi api({}, 4096, nullptr, false);
  for (const char* path : {kPath, "/v1/completions"}) {
    Json body = UserChat();
    if (path != kPath) body = Json{{"prompt", "a"}};
    for (const int64_t priority : {-1, 1, INT32_MAX, INT32_MIN}) {
      body["priority"] = priority;
      const auto exchange = api.Post(path, body);
      ExpectError(*exchange, 400, "priority");
      EXPECT_NE(exchange->body.find("--scheduling-policy priority"), std::string::npos);
    }
    body["priority"] = 0;
    EXPECT_EQ(api.Post(path, body)->status, 200);
    body["priority"] = nullptr;
    EXPECT_EQ(api.Post(path, body)->status, 200);
  }
}

}  // namespace
}  // namespace senko::api
