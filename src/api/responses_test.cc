// /v1/responses.
#include <gtest/gtest.h>

#include "api/test_streams.h"

namespace senko::api {
namespace {

constexpr char kPath[] = "/v1/responses";
const std::string kCall =
    "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" string=\"true\">x "
    "2>&1</｜DSML｜ parameter>\n"
    "</｜DSML｜ invoke>\n</｜DSML｜ calls>";

Json Tools() {
  return Json::array({{{"type", "function"}, {"name", "f"}, {"strict", false}, {"parameters", {{"type", "object"}}}}});
}

Seen Ask(TestApi* api, Json body) {
  const SeenAnswer whole = ResponsesWholeSeen(*api->Post(kPath, body));
  body["stream"] = true;
  const SeenAnswer stream = ResponsesStreamSeen(*api->Post(kPath, body));
  EXPECT_EQ(whole, stream);
  return whole.choices.at(0);
}
std::string PromptOf(TestApi* api, const Json& body) {
  const auto exchange = api->Post(kPath, body);
  EXPECT_EQ(exchange->status, 200) << exchange->body;
  return api->tokenizer.Decode(api->engine.submitted().back().prompt, false);
}

TEST(Responses, ReasoningMessageAndCalls) {
  TestApi api;
  const Json body = {{"input", "hi"}, {"reasoning", {{"effort", "medium"}, {"summary", "auto"}}}, {"tools", Tools()}};
  const std::string text = "say 🌍" + kCall;
  for (const size_t chunk : {1, 3, 7, 500}) {
    api.SayBytes(text, chunk);
    const Seen seen = Ask(&api, body);
    EXPECT_EQ(seen.content, "say 🌍");
    EXPECT_EQ(seen.calls, (std::vector<SeenCall>{{"f", R"({"a": "x 2>&1"})"}}));
    EXPECT_EQ(seen.finish, "tool_calls");
  }
  api.SayBytes("");
  EXPECT_EQ(Ask(&api, body).content, "");
  api.SayBytes("long text");
  Json cut = body;
  cut["max_output_tokens"] = 4;
  const Seen seen = Ask(&api, cut);
  EXPECT_EQ(seen.content, "long");
  EXPECT_EQ(seen.finish, "length");
  const Json response = api.Post(kPath, cut)->json();
  EXPECT_EQ(response.at("status"), "incomplete");
  EXPECT_EQ(response.at("incomplete_details").at("reason"), "max_output_tokens");
  EXPECT_EQ(response.at("output")[0].at("status"), "incomplete");
}

TEST(Responses, ACallThatWasCutIsIncomplete) {
  TestApi api;
  const Json body = {{"input", "hi"}, {"tools", Tools()}};
  for (const std::string& text : {kCall.substr(0, kCall.find("x 2>&1") + 3), kCall}) {
    api.SayBytes(text);
    Ask(&api, body);
    const Json call = api.Post(kPath, body)->json().at("output").at(0);
    EXPECT_EQ(call.at("status"), text == kCall ? "completed" : "incomplete");
  }
}

TEST(Responses, TheResponseObject) {
  TestApi api;
  api.engine.cached_tokens = 2;
  api.SayBytes("ab");
  const Json response = api.Post(kPath, Json{{"input", "hi"},
                                             {"instructions", "be brief"},
                                             {"tools", Tools()},
                                             {"temperature", 0.5},
                                             {"store", true},
                                             {"include", {"reasoning.encrypted_content"}},
                                             {"metadata", {{"k", "v"}}},
                                             {"client_metadata", {{"k", "v"}}},
                                             {"prompt_cache_key", "x"}})
                            ->json();
  EXPECT_TRUE(response.at("id").get<std::string>().starts_with("resp_"));
  EXPECT_EQ(response.at("object"), "response");
  EXPECT_EQ(response.at("status"), "completed");
  EXPECT_EQ(response.at("store"), false);
  EXPECT_EQ(response.at("instructions"), "be brief");
  EXPECT_EQ(response.at("tools"), Tools());
  EXPECT_EQ(response.at("tool_choice"), "auto");
  EXPECT_EQ(response.at("parallel_tool_calls"), true);
  EXPECT_EQ(response.at("temperature"), 0.5);
  EXPECT_EQ(response.at("metadata").at("k"), "v");
  EXPECT_TRUE(response.at("error").is_null());
  const Json& usage = response.at("usage");
  EXPECT_EQ(usage.at("output_tokens"), 3);
  EXPECT_EQ(usage.at("input_tokens_details").at("cached_tokens"), 2);
  EXPECT_EQ(usage.at("total_tokens"), usage.at("input_tokens").get<int>() + 3);
}

TEST(Responses, InputItems) {
  TestApi api;
  const Json items = {
      {{"role", "developer"}, {"content", "dev"}},
      {{"type", "message"},
       {"role", "user"},
       {"content", {{{"type", "input_text"}, {"text", "a"}}, {{"type", "input_text"}, {"text", "b"}}}}},
      {{"type", "reasoning"},
       {"id", "rs_1"},
       {"summary", Json::array()},
       {"content", {{{"type", "reasoning_text"}, {"text", "why"}}}},
       {"encrypted_content", nullptr},
       {"status", "completed"}},
      {{"type", "message"},
       {"id", "msg_1"},
       {"status", "completed"},
       {"role", "assistant"},
       {"content",
        {{{"type", "output_text"}, {"text", "let me"}, {"annotations", Json::array()}, {"logprobs", Json::array()}}}}},
      {{"type", "function_call"},
       {"id", "fc_1"},
       {"call_id", "c1"},
       {"name", "f"},
       {"arguments", "{\"a\":1}"},
       {"status", "completed"}},
      {{"type", "function_call"}, {"call_id", "c2"}, {"name", "f"}, {"arguments", "{}"}},
      {{"type", "function_call_output"}, {"call_id", "c1"}, {"output", "one"}},
      {{"type", "function_call_output"}, {"call_id", "c2"}, {"output", {{{"type", "input_text"}, {"text", "two"}}}}},
      {{"role", "user"}, {"content", "and?"}}};
  const std::string prompt = PromptOf(
      &api, {{"input", items}, {"tools", Tools()}, {"reasoning", {{"effort", "high"}}}, {"instructions", "sys"}});
  for (const char* part :
       {"<｜System｜>", "sys", "<｜System｜>dev", "<｜User｜>a\n\nb<｜Assistant｜><think>why</think>let me",
        "<tool_result>one</tool_result>\n\n<tool_result>two</tool_result>\n\nand?<｜Assistant｜>"}) {
    EXPECT_NE(prompt.find(part), std::string::npos) << part << " in " << prompt;
  }
  // One assistant turn: one header before both calls.
  size_t headers = 0;
  for (size_t at = 0; (at = prompt.find("<｜Assistant｜>", at)) != std::string::npos; ++at) ++headers;
  EXPECT_EQ(headers, 2u);
}

TEST(Responses, ReasoningComesBackInThinkingMode) {
  TestApi api;
  const auto exchange = std::make_shared<ApiContext>(api.engine, api.tokenizer, &api.tools_prompt, ApiOptions{{"m"}});
  const std::vector<Route> routes = MakeRoutes(*exchange);
  api.SayBytes("so</think>yes");
  for (const Route& route : routes) {
    if (route.path != kPath) continue;
    for (const bool stream : {false, true}) {
      auto answer = std::make_shared<FakeExchange>();
      HttpRequest request;
      request.path = kPath;
      request.body = DumpJson(Json{{"input", "hi"}, {"stream", stream}});
      route.handler(request, answer);
      ASSERT_TRUE(answer->Wait());
      const SeenAnswer seen = stream ? ResponsesStreamSeen(*answer) : ResponsesWholeSeen(*answer);
      EXPECT_EQ(seen.choices.at(0).reasoning, "so");
      EXPECT_EQ(seen.choices.at(0).content, "yes");
      EXPECT_EQ(seen.usage.at("output_tokens_details").at("reasoning_tokens"), 10);
    }
  }
  api.engine.Shutdown();
}

TEST(Responses, Refused) {
  TestApi api;
  const auto with = [](const std::string& field, Json value) {
    Json body = {{"input", "hi"}};
    body[field] = std::move(value);
    return body;
  };
  const std::vector<std::tuple<std::string, std::string, Json>> bad = {
      {"input", "input", nullptr},
      {"input", "input", Json::array()},
      {"input", "input", 3},
      {"input[0]", "input", Json::array({3})},
      {"input[0].type", "input", Json::array({{{"type", "item_reference"}, {"id", "x"}}})},
      {"input[0].type", "input", Json::array({{{"type", "custom_tool_call"}}})},
      {"input[0].role", "input", Json::array({{{"role", "tool"}, {"content", "x"}}})},
      {"input[0].content[0].type", "input",
       Json::array({{{"role", "user"}, {"content", {{{"type", "input_image"}, {"image_url", "data:"}}}}}})},
      {"input[0].name", "input", Json::array({{{"type", "function_call"}, {"call_id", "c"}}})},
      {"input[0].encrypted_content", "input", Json::array({{{"type", "reasoning"}, {"encrypted_content", "xyz"}}})},
      {"input[0].other", "input", Json::array({{{"role", "user"}, {"content", "x"}, {"other", 1}}})},
      {"previous_response_id", "previous_response_id", "resp_1"},
      {"conversation", "conversation", "c"},
      {"prompt", "prompt", {{"id", "x"}}},
      {"background", "background", true},
      {"truncation", "truncation", "auto"},
      {"max_tool_calls", "max_tool_calls", 1},
      {"top_logprobs", "top_logprobs", 2},
      {"include", "include", {"message.output_text.logprobs"}},
      {"text.format.type", "text", {{"format", {{"type", "json_schema"}}}}},
      {"text.verbosity", "text", {{"verbosity", "low"}}},
      {"tools[0].type", "tools", Json::array({{{"type", "web_search"}}})},
      {"tools[0].strict", "tools", Json::array({{{"type", "function"}, {"name", "f"}, {"strict", true}}})},
      {"tool_choice", "tool_choice", "required"},
      {"reasoning.effort", "reasoning", {{"effort", "lots"}}},
      {"max_output_tokens", "max_output_tokens", 0},
      {"temperature", "temperature", -1},
      {"top_p", "top_p", 2},
      {"n", "n", 2},
      {"stop", "stop", "x"},
      {"messages", "messages", Json::array({1})}};
  for (const auto& [param, field, value] : bad) {
    SCOPED_TRACE(field + DumpJson(value));
    ExpectError(*api.Post(kPath, with(field, value)), 400, param);
  }
  Json items = Json::array();
  for (int i = 0; i < 12000; ++i) items.push_back({{"type", "nonsense"}, {"x", i}});
  ExpectError(*api.Post(kPath, Json{{"input", items}}), 400, "input[0].type");
  EXPECT_TRUE(api.engine.submitted().empty());
}

TEST(Responses, FailuresAreToldInTheStream) {
  TestApi api;
  api.engine.script = [](const GenerationRequest&, int) { return FakeScript{TestApi::Bytes("ab"), 1, false, true}; };
  ExpectError(*api.Post(kPath, Json{{"input", "hi"}}), 500);
  const auto exchange = api.Post(kPath, Json{{"input", "hi"}, {"stream", true}});
  EXPECT_EQ(exchange->events.front().first, "response.created");
  EXPECT_EQ(exchange->events.back().first, "response.failed");
  const Json response = ParseJson(exchange->events.back().second, "e").at("response");
  EXPECT_EQ(response.at("status"), "failed");
  EXPECT_EQ(response.at("error").at("code"), "server_error");
}

}  // namespace
}  // namespace senko::api
