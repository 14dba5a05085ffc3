// What chat completions take, refuse and make of it (behaviours.md, 3, 4 and 8).
#include <gtest/gtest.h>

#include <random>

#include "api/test_streams.h"

namespace senko::api {
namespace {

constexpr char kPath[] = "/v1/chat/completions";

Json With(const std::string& field, Json value) {
  Json body = UserChat();
  body[field] = std::move(value);
  return body;
}
// Raw text, so that any JSON can stand there.
std::string Raw(const std::string& field, const std::string& value) {
  return R"({"messages":[{"role":"user","content":"hi"}],")" + field + "\":" + value + "}";
}

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
        ExpectError(*api.Post(kPath, Raw(field, value)), 400, field);
      }
    }
    // Not JSON at all, or no number that a double holds.
    for (const char* value : {"NaN", "Infinity", "-Infinity", "1e999", "-1e999", "nan", "+1", ".5", "01"}) {
      SCOPED_TRACE(field + " " + value);
      ExpectError(*api.Post(kPath, Raw(field, value)), 400, field);
    }
    EXPECT_EQ(api.Post(kPath, Raw(field, "null"))->status, 200);
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
    EXPECT_EQ(api.Post(kPath, Raw("temperature", value))->status, 200) << value;
  }
  EXPECT_EQ(api.Post(kPath, With("logprobs", true))->status, 200);
  EXPECT_EQ(api.engine.submitted().back().sampling.logprobs, 0);
  EXPECT_EQ(api.Post(kPath, With("top_k", -1))->status, 200);
  EXPECT_EQ(api.engine.submitted().back().sampling.top_k, 0);
  EXPECT_EQ(api.Post(kPath, UserChat())->status, 200);
  EXPECT_FALSE(api.engine.submitted().back().sampling.seed.has_value());
}

TEST(ChatRequest, IdsOutsideTheVocabulary) {
  TestApi api;
  const int64_t v = api.tokenizer.vocab_size();
  for (const std::string& id : {std::to_string(v), std::to_string(v + 1), std::string("-1"), std::string("2147483648"),
                                std::string("9223372036854775808"), std::string("x"), std::string("1.5")}) {
    ExpectError(*api.Post(kPath, Raw("logit_bias", "{\"" + id + "\":1}")), 400, "logit_bias");
    if (id != "x") ExpectError(*api.Post(kPath, Raw("stop_token_ids", "[" + id + "]")), 400, "stop_token_ids");
  }
  ExpectError(*api.Post(kPath, Raw("logit_bias", "{\"5\":101}")), 400, "logit_bias");
  ExpectError(*api.Post(kPath, Raw("logit_bias", "{\"5\":\"1\"}")), 400, "logit_bias");
  EXPECT_TRUE(api.engine.submitted().empty());
}

TEST(ChatRequest, Stops) {
  TestApi api;
  for (const char* bad : {"\"\"", "[\"\"]", "[\"a\",\"\"]", "1", "[1]", "{}", "[[\"a\"]]"}) {
    ExpectError(*api.Post(kPath, Raw("stop", bad)), 400, "stop");
  }
  ExpectError(*api.Post(kPath, With("stop", Json(std::vector<std::string>(65, "a")))), 400, "stop");
  for (const char* good : {"null", "\"a\"", "[]", "[\"a\",\"bc\"]"}) {
    EXPECT_EQ(api.Post(kPath, Raw("stop", good))->status, 200) << good;
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
  for (const auto& [field, value] : refused) ExpectError(*api.Post(kPath, With(field, value)), 400, field);
  for (const Json& format :
       {schema, Json{{"type", "json_object"}}, Json{{"type", "grammar"}}, Json{{"type", 1}}, Json::object()}) {
    ExpectError(*api.Post(kPath, With("response_format", format)), 400, "response_format.type");
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
  ExpectError(*api.Post(kPath, With("model", "gpt")), 404, "model", "model_not_found");
}

TEST(ChatRequest, BodiesThatAreNoRequest) {
  TestApi api;
  const std::string good = DumpJson(UserChat());
  std::vector<std::string> bodies = {
      "",
      " ",
      "x",
      "null",
      "[]",
      "1",
      "\"a\"",
      good + "x",
      good + good,
      "\xEF\xBB\xBF" + good,
      "{\"messages\":",
      R"({"messages":[{"role":"user","content":"\ud800"}]})",
      R"({"messages":[{"role":"user","content":"\udc00\ud800"}]})",
      R"({"messages":[{"role":"user","content":"\ud83dx"}]})",
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"\ud83d"},{"type":"text","text":"\ude00"}]}]})",
      "{\"messages\":[{\"role\":\"user\",\"content\":\"\xFF\"}]}",
      "{\"messages\":[{\"role\":\"user\",\"content\":\"\xC0\xAF\"}]}",
      "{\"messages\":[{\"role\":\"user\",\"content\":\"\xED\xA0\x80\"}]}",
      R"({"n":1,"n":2,"messages":[{"role":"user","content":"hi"}]})",
      std::string("{\0}", 3)};
  for (const size_t depth : {10u, 65u, 1000u, 100000u}) {
    bodies.push_back("{\"messages\":" + std::string(depth, '['));
    bodies.push_back("{\"messages\":" + std::string(depth, '[') + std::string(depth, ']') + "}");
    std::string objects;
    for (size_t i = 0; i < depth; ++i) objects += "{\"a\":";
    bodies.push_back(objects);
  }
  for (const std::string& body : bodies) {
    SCOPED_TRACE(body.substr(0, 100));
    const auto exchange = api.Post(kPath, body);
    ExpectError(*exchange, 400);
    EXPECT_EQ(exchange->body.find("ud83d"), std::string::npos);
  }
  EXPECT_TRUE(api.engine.submitted().empty());
  EXPECT_EQ(api.Post(kPath, std::string(R"({"messages":[{"role":"user","content":"\ud83d\ude00 \u0000"}]})"))->status,
            200);
}

TEST(ChatRequest, ErrorsAreSmallAndEchoNothing) {
  TestApi api;
  const std::string secret = "SECRET" + std::string(100000, 's');
  std::vector<Json> bodies = {With(secret, 1), With("model", secret), With("stop", {secret, ""})};
  Json items = Json::array();
  for (int i = 0; i < 12000; ++i) items.push_back({{"role", secret.substr(0, 50)}, {"content", 7}});
  bodies.push_back({{"messages", items}});
  bodies.push_back(Json{{"messages", {{{"role", "user"}, {"content", {{{"type", secret}, {"text", secret}}}}}}}});
  bodies.push_back(With("tools", {{{"type", "function"}, {"function", {{"name", secret}}}}}));
  for (const Json& body : bodies) {
    const auto exchange = api.Post(kPath, body);
    EXPECT_GE(exchange->status, 400);
    EXPECT_LT(exchange->body.size(), 1000u);
    EXPECT_EQ(exchange->body.find("ssssssssss"
                                  "sssssssssssssssssssssssssssssssssssssssssssssssssssssssssss"),
              std::string::npos);
  }
  for (const std::string body : {"{\"messages\": SECRET}", "{\"SECRETkey\": 1, \"SECRETkey\": 2}"}) {
    EXPECT_EQ(api.Post(kPath, std::string(body))->body.find("SECRET"), std::string::npos);
  }
}

TEST(ChatRequest, OddHistories) {
  TestApi api;
  const Json user = {{"role", "user"}, {"content", "hi"}};
  const Json call = {{"id", "c1"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", "{\"a\":1}"}}}};
  const auto chat = [](Json messages) { return Json{{"messages", std::move(messages)}}; };
  const std::vector<std::pair<std::string, Json>> good = {
      {"null content",
       {user,
        {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", {call}}},
        {{"role", "tool"}, {"content", "x"}, {"tool_call_id", "c1"}}}},
      {"content and calls",
       {user,
        {{"role", "assistant"}, {"content", "let me"}, {"tool_calls", {call}}},
        {{"role", "tool"}, {"content", "x"}}}},
      {"no content at all", {user, {{"role", "assistant"}}, user}},
      {"empty content", {user, {{"role", "assistant"}, {"content", ""}}, user}},
      {"empty user", {{{"role", "user"}, {"content", ""}}}},
      {"parts",
       {{{"role", "user"}, {"content", {{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}}}}}},
      {"developer", {{{"role", "developer"}, {"content", "be"}}, user}},
      {"reminder", {{{"role", "latest_reminder"}, {"content", "be"}}, user}},
      {"system alone", {{{"role", "system"}, {"content", "be"}}}},
      {"trailing assistant", {user, {{"role", "assistant"}, {"content", "so"}}}},
      {"prefix", {user, {{"role", "assistant"}, {"content", "so"}, {"prefix", true}}}},
      {"our own answer",
       {user,
        {{"role", "assistant"},
         {"content", "so"},
         {"refusal", nullptr},
         {"reasoning_content", "r"},
         {"reasoning", "r"},
         {"annotations", Json::array()},
         {"audio", nullptr},
         {"function_call", nullptr},
         {"tool_calls", nullptr}},
        user}},
      {"named", {{{"role", "user"}, {"content", "hi"}, {"name", "bob"}}}},
      {"odd arguments",
       {user,
        {{"role", "assistant"},
         {"tool_calls",
          {{{"id", "c"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", "not json"}}}}}}},
        user}},
      {"parsed arguments",
       {user,
        {{"role", "assistant"},
         {"tool_calls",
          {{{"id", "c"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", {{"a", 1}}}}}}}}},
        user}},
  };
  for (const auto& [name, messages] : good) {
    EXPECT_EQ(api.Post(kPath, chat(messages))->status, 200) << name;
  }
  const std::vector<std::tuple<std::string, Json>> bad = {
      {"messages", Json::array()},
      {"messages", "hi"},
      {"messages[0]", {1}},
      {"messages[0].role", {{{"content", "x"}}}},
      {"messages[0].role", {{{"role", "function"}, {"content", "x"}}}},
      {"messages[1].role", {user, {{"role", 3}, {"content", "x"}}}},
      {"messages[0].content", {{{"role", "user"}, {"content", 3}}}},
      {"messages[0].content[0].type",
       {{{"role", "user"}, {"content", {{{"type", "image_url"}, {"image_url", {{"url", "file:///etc/passwd"}}}}}}}}},
      {"messages[0].content[0].text", {{{"role", "user"}, {"content", {{{"type", "text"}}}}}}},
      {"messages[0].content[0]", {{{"role", "user"}, {"content", {"x"}}}}},
      {"messages[0].tool_calls", {{{"role", "user"}, {"content", "x"}, {"tool_calls", {call}}}}},
      {"messages[0].prefix", {{{"role", "assistant"}, {"content", "x"}, {"prefix", true}}, user}},
      {"messages[1].tool_calls[0].function",
       {user, {{"role", "assistant"}, {"tool_calls", {{{"id", "c"}, {"type", "function"}}}}}}},
      {"messages[1].tool_calls[0].function.name",
       {user, {{"role", "assistant"}, {"tool_calls", {{{"id", "c"}, {"function", {{"arguments", "{}"}}}}}}}}},
      {"messages[1].reasoning", {user, {{"role", "assistant"}, {"reasoning", "a"}, {"reasoning_content", "b"}}}},
      {"messages", {user, {{"role", "assistant"}, {"prefix", true}, {"tool_calls", {call}}}}},
  };
  for (const auto& [param, messages] : bad) {
    SCOPED_TRACE(DumpJson(messages));
    ExpectError(*api.Post(kPath, chat(messages)), 400, param);
  }
  ExpectError(*api.Post(kPath, std::string("{}")), 400, "messages");
}

TEST(ChatRequest, ToolsAndChoices) {
  TestApi api;
  const Json f = {
      {"type", "function"},
      {"function", {{"name", "f"}, {"description", nullptr}, {"parameters", {{"type", "object"}}}, {"strict", false}}}};
  const auto ask = [&](const Json& tools, const Json& choice) {
    Json body = With("tools", tools);
    if (!choice.is_null()) body["tool_choice"] = choice;
    return api.Post(kPath, body);
  };
  for (const Json& choice : {Json(), Json("auto"), Json("none"), Json("required"),
                             Json{{"type", "function"}, {"function", {{"name", "f"}}}}}) {
    EXPECT_EQ(ask(Json::array({f}), choice)->status, 200) << choice;
  }
  ExpectError(*ask(Json::array({f}), "always"), 400, "tool_choice");
  ExpectError(*ask(Json::array({f}), 3), 400, "tool_choice");
  ExpectError(*ask(Json::array({f}), {{"type", "function"}, {"function", {{"name", "g"}}}}), 400, "tool_choice");
  ExpectError(*ask(Json::array({f}), {{"type", "allowed_tools"}}), 400, "tool_choice.type");
  ExpectError(*ask(Json::array(), "required"), 400, "tool_choice");
  ExpectError(*ask(Json::array({f, f}), "auto"), 400, "tools[1]");
  ExpectError(*ask("f", Json()), 400, "tools");
  ExpectError(*ask(Json::array({{{"type", "web_search"}}}), Json()), 400, "tools[0].type");
  ExpectError(*ask(Json::array({{{"type", "function"}}}), Json()), 400, "tools[0].function");
  ExpectError(*ask(Json::array({{{"type", "function"}, {"function", {{"name", "a b\">"}}}}}), Json()), 400,
              "tools[0].function.name");
  ExpectError(*ask(Json::array({{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", "x"}}}}}), Json()),
              400, "tools[0].function.parameters");
  ExpectError(*ask(Json::array({{{"type", "function"}, {"function", {{"name", "f"}, {"strict", true}}}}}), Json()), 400,
              "tools[0].function.strict");
}

TEST(ChatRequest, ModesAndEffort) {
  TestApi api;
  const auto prompt = [&](const Json& body) {
    const auto exchange = api.Post(kPath, body);
    EXPECT_EQ(exchange->status, 200) << exchange->body;
    return api.tokenizer.Decode(api.engine.submitted().back().prompt, false);
  };
  EXPECT_TRUE(prompt(UserChat()).ends_with("</think>"));
  for (const char* field : {"thinking", "enable_thinking"}) {
    EXPECT_TRUE(prompt(With("chat_template_kwargs", {{field, true}})).ends_with("<think>"));
  }
  EXPECT_TRUE(prompt(With("thinking", {{"type", "enabled"}})).ends_with("<think>"));
  const std::vector<std::pair<Json, std::string>> efforts = {{"low", "50"},  {"minimal", "50"}, {"medium", "75"},
                                                             {"high", "75"}, {"xhigh", "75"},   {"max", "100"},
                                                             {1, "1"},       {100, "100"},      {42, "42"}};
  for (const auto& [effort, number] : efforts) {
    Json body = With("chat_template_kwargs", {{"thinking", true}, {"reasoning_effort", effort}});
    EXPECT_NE(prompt(body).find("Reasoning Effort: " + number + " "), std::string::npos) << effort;
    body = With("chat_template_kwargs", {{"thinking", true}});
    body["reasoning_effort"] = effort;
    EXPECT_NE(prompt(body).find("Reasoning Effort: " + number + " "), std::string::npos) << effort;
  }
  EXPECT_TRUE(prompt(With("reasoning_effort", "none")).ends_with("</think>"));
  for (const Json& bad : {Json("lots"), Json(0), Json(101), Json(true), Json(7.5), Json("")}) {
    ExpectError(*api.Post(kPath, With("reasoning_effort", bad)), 400, "reasoning_effort");
  }
  ExpectError(*api.Post(kPath, With("chat_template_kwargs", {{"thinking", 1}})), 400, "chat_template_kwargs.thinking");
  ExpectError(*api.Post(kPath, With("chat_template_kwargs", {{"other", 1}})), 400, "chat_template_kwargs.other");
  ExpectError(*api.Post(kPath, With("chat_template_kwargs", {{"thinking", true}, {"enable_thinking", false}})), 400,
              "chat_template_kwargs.enable_thinking");

  // The model goes on with what was begun, in content or still in reasoning.
  Json body =
      Json{{"messages", {{{"role", "user"}, {"content", "hi"}}, {{"role", "assistant"}, {"content", "Well,"}}}}};
  EXPECT_TRUE(prompt(body).ends_with("<｜Assistant｜></think>"));
  body["continue_final_message"] = true;
  EXPECT_TRUE(prompt(body).ends_with("<｜Assistant｜></think>Well,"));
  body["add_generation_prompt"] = true;
  ExpectError(*api.Post(kPath, body), 400, "add_generation_prompt");
  body["add_generation_prompt"] = false;
  body["messages"][1] = {{"role", "assistant"}, {"reasoning_content", "so"}};
  body["chat_template_kwargs"] = {{"thinking", true}};
  EXPECT_TRUE(prompt(body).ends_with("<｜Assistant｜><think>so"));
  api.SayBytes(" what</think>this");
  const Seen seen = ChatWholeSeen(*api.Post(kPath, body)).choices.at(0);
  EXPECT_EQ(seen.reasoning, " what");
  EXPECT_EQ(seen.content, "this");
  ExpectError(*api.Post(kPath, With("continue_final_message", true)), 400, "continue_final_message");
  ExpectError(*api.Post(kPath, With("add_generation_prompt", false)), 400, "add_generation_prompt");
}

TEST(ChatRequest, WordsNeverBecomeControlTokens) {
  TestApi api;
  const auto controls = [&](const Json& body) {
    EXPECT_EQ(api.Post(kPath, body)->status, 200);
    int count = 0;
    const GenerationRequest submitted = api.engine.submitted().back();
    for (const int32_t id : submitted.prompt) count += id < kTestControls;
    return count;
  };
  std::string all = "<|User|>";
  for (int32_t id = 0; id < kTestControls; ++id) {
    // Marks of places in a picture may stand in an assistant's recorded words (text/README.md, text.plain).
    if (api.tokenizer.TokenSpelling(id) != "<｜ref｜>") all += api.tokenizer.TokenSpelling(id);
  }
  const auto body = [](const std::string& words) {
    const Json call = {{"id", "c"},
                       {"type", "function"},
                       {"function", {{"name", "f"}, {"arguments", Json{{"a" + words, words}}.dump()}}}};
    Json out = {{"messages",
                 {{{"role", "system"}, {"content", words}},
                  {{"role", "user"}, {"content", words}},
                  {{"role", "assistant"}, {"content", "x"}, {"reasoning_content", words}, {"tool_calls", {call}}},
                  {{"role", "tool"}, {"content", words}},
                  {{"role", "user"}, {"content", {{{"type", "text"}, {"text", words}}}}}}},
                {"tools",
                 {{{"type", "function"},
                   {"function", {{"name", "f"}, {"description", words}, {"parameters", {{words, words}}}}}}}},
                {"chat_template_kwargs", {{"thinking", true}}}};
    return out;
  };
  EXPECT_EQ(controls(body(all)), controls(body("benign")));
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
  ExpectError(*api.Post(kPath, With("stream_options", {{"include_usage", true}})), 400, "stream_options");
  ExpectError(*api.Post(kPath, With("stream", "yes")), 400, "stream");
  Json body = With("stream", true);
  body["stream_options"] = {{"other", true}};
  ExpectError(*api.Post(kPath, body), 400, "stream_options.other");
  body = With("prompt_logprobs", 1);
  body["stream"] = true;
  ExpectError(*api.Post(kPath, body), 400, "prompt_logprobs");
  ExpectError(*api.Post(kPath, With("top_logprobs", 2)), 400, "top_logprobs");
}

TEST(ChatRequest, WhatTheEngineRefusesIsTold) {
  TestApi api;
  api.engine.on_submit = [](const GenerationRequest&) {
    throw Error(ErrorCode::kOverloaded, "1024 requests wait already");
  };
  for (const bool stream : {false, true}) {
    const auto exchange = api.Post(kPath, With("stream", stream));
    ExpectError(*exchange, 503, "", "overloaded");
    EXPECT_EQ(exchange->Header("Retry-After"), "1");
  }
  api.engine.on_submit = [](const GenerationRequest&) {
    throw Error(ErrorCode::kInvalidArgument, "stop_token_ids: too many");
  };
  ExpectError(*api.Post(kPath, UserChat()), 400, "stop_token_ids");
  api.engine.on_submit = [](const GenerationRequest&) { throw std::logic_error("secret place in the code"); };
  const auto exchange = api.Post(kPath, UserChat());
  ExpectError(*exchange, 500);
  EXPECT_EQ(exchange->body.find("secret"), std::string::npos);
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

// How long a body may be is the server's to say: here only its values are counted.
TEST(ChatRequest, ManyBytesAreReadAndManyValuesAreNot) {
  TestApi api;
  Json body = UserChat();
  body["metadata"] = {{"x", std::string(size_t{65} << 20, 'x')}};
  EXPECT_EQ(api.Post(kPath, body)->status, 200);
  std::string text = "{\"metadata\":[1";
  for (int i = 0; i < 1 << 21; ++i) text += ",1";
  const auto exchange = api.Post(kPath, text + "],\"messages\":[]}");
  ExpectError(*exchange, 400, "metadata");
  EXPECT_NE(exchange->body.find("2097152 values"), std::string::npos);
}

// Long runs of one class, in a tool's result, on a worker: tokenized in linear time (the real splitter).
TEST(ChatRequest, LongTexts) {
  TestApi api({}, 64 << 20, &TinyTokenizer());
  api.Say({});
  for (const char* unit : {"Z", "7", " ", "\n", ".", "漢", "\u0301", "\u200d"}) {
    std::string text;
    while (text.size() < 300000) text += unit;
    Json body = UserChat();
    body["messages"].push_back({{"role", "tool"}, {"content", text}});
    EXPECT_EQ(api.Post(kPath, body)->status, 200) << unit;
    EXPECT_EQ(api.tokenizer.Decode(api.engine.submitted().back().prompt, false).find(text) == std::string::npos, false);
  }
}

TEST(ChatRequest, TooManyLongOnesAreRefused) {
  TestApi api({}, 1 << 20);
  std::mutex gate;
  gate.lock();
  api.engine.on_submit = [&](const GenerationRequest&) { const std::lock_guard wait(gate); };
  Json body = UserChat(std::string(kInlineBodyBytes, 'x'));
  body["max_tokens"] = 1;
  std::vector<std::shared_ptr<FakeExchange>> all;
  for (int i = 0; i < 400; ++i) all.push_back(api.Begin(kPath, DumpJson(body)));
  gate.unlock();
  int refused = 0;
  for (const auto& exchange : all) {
    EXPECT_TRUE(exchange->Wait());
    refused += exchange->status == 503;
  }
  EXPECT_GE(refused, 400 - 256 - 4);
  EXPECT_EQ(api.Post(kPath, body)->status, 200) << "what has been read no longer waits";
}

}  // namespace
}  // namespace senko::api
