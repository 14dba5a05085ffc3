// /v1/messages and /v1/messages/count_tokens.
#include <gtest/gtest.h>

#include "api/test_streams.h"

namespace senko::api {
namespace {

constexpr char kPath[] = "/v1/messages";
const std::string kCall =
    "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" string=\"true\">x "
    "2>&1</｜DSML｜ parameter>\n"
    "<｜DSML｜ parameter name=\"b\" string=\"false\">[1, 2]</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ "
    "calls>";

Json Body(Json messages = Json::array({{{"role", "user"}, {"content", "hi"}}})) {
  return {{"model", "senko-test"}, {"max_tokens", 1000}, {"messages", std::move(messages)}};
}
Json With(const std::string& field, Json value) {
  Json body = Body();
  body[field] = std::move(value);
  return body;
}
Json Tools() {
  return Json::array({{{"name", "f"},
                       {"description", "d"},
                       {"input_schema", {{"type", "object"}}},
                       {"cache_control", {{"type", "ephemeral"}}}}});
}

SeenAnswer Ask(TestApi* api, Json body) {
  const SeenAnswer whole = MessagesWholeSeen(*api->Post(kPath, body));
  body["stream"] = true;
  const SeenAnswer stream = MessagesStreamSeen(*api->Post(kPath, body));
  EXPECT_EQ(whole, stream);
  return whole;
}
std::string PromptOf(TestApi* api, const Json& body) {
  const auto exchange = api->Post(kPath, body);
  EXPECT_EQ(exchange->status, 200) << exchange->body;
  return api->tokenizer.Decode(api->engine.submitted().back().prompt, false);
}
// Anthropic's shape has no param: the message names the field first.
void ExpectRefused(const FakeExchange& exchange, int status, std::string_view type, std::string_view field) {
  EXPECT_EQ(exchange.status, status) << exchange.body;
  const Json error = exchange.json();
  EXPECT_EQ(error.value("type", ""), "error");
  EXPECT_EQ(error.at("error").at("type"), type);
  EXPECT_TRUE(error.at("error").at("message").get<std::string>().starts_with(field)) << exchange.body << field;
}

TEST(Messages, ThinkingTextAndTools) {
  TestApi api;
  Json body = With("tools", Tools());
  body["thinking"] = {{"type", "enabled"}, {"budget_tokens", 1024}};
  body["max_tokens"] = 2000;
  for (const size_t chunk : {1, 3, 7, 500}) {
    api.SayBytes("why</think>say 🌍" + kCall, chunk);
    const Seen seen = Ask(&api, body).choices.at(0);
    EXPECT_EQ(seen.reasoning, "why");
    EXPECT_EQ(seen.content, "say 🌍");
    EXPECT_EQ(seen.calls, (std::vector<SeenCall>{{"f", R"({"a":"x 2>&1","b":[1,2]})"}}));
    EXPECT_EQ(seen.finish, "tool_calls");
    EXPECT_TRUE(seen.call_ids[0].starts_with("toolu_"));
  }
  body["thinking"] = {{"type", "adaptive"}, {"display", "omitted"}};
  EXPECT_EQ(Ask(&api, body).choices.at(0).reasoning, "");
  api.SayBytes("plain");
  EXPECT_EQ(Ask(&api, Body()).choices.at(0).content, "plain");
  EXPECT_TRUE(PromptOf(&api, Body()).ends_with("</think>"));
  api.SayBytes("");
  EXPECT_EQ(api.Post(kPath, Body())->json().at("content"), Json::array());
}

TEST(Messages, StopsAndUsage) {
  TestApi api;
  api.engine.cached_tokens = 2;
  api.SayBytes("one STOP two");
  Json body = With("stop_sequences", {"STOP"});
  const SeenAnswer answer = Ask(&api, body);
  EXPECT_EQ(answer.choices.at(0).content, "one ");
  EXPECT_EQ(answer.choices.at(0).stop, "STOP");
  const int64_t prompt =
      api.Post("/v1/messages/count_tokens", Json{{"messages", body["messages"]}})->json().at("input_tokens");
  EXPECT_EQ(answer.usage.at("input_tokens"), prompt - 2);
  EXPECT_EQ(answer.usage.at("cache_read_input_tokens"), 2);
  EXPECT_EQ(answer.usage.at("output_tokens"), 8);
  const Json message = api.Post(kPath, body)->json();
  EXPECT_EQ(message.at("stop_reason"), "stop_sequence");
  EXPECT_EQ(message.at("type"), "message");
  body["max_tokens"] = 2;
  EXPECT_EQ(Ask(&api, body).choices.at(0).finish, "length");
  body["stream"] = true;
  const auto exchange = api.Post(kPath, body);
  const Json start = ParseJson(exchange->events[0].second, "e").at("message");
  EXPECT_EQ(start.at("usage").at("input_tokens"), prompt - 2);
  EXPECT_EQ(start.at("content"), Json::array());
}

TEST(Messages, Conversations) {
  TestApi api;
  const Json messages = {{{"role", "user"},
                          {"content",
                           {{{"type", "text"}, {"text", "a"}, {"cache_control", {{"type", "ephemeral"}}}},
                            {{"type", "text"}, {"text", "b"}}}}},
                         {{"role", "assistant"},
                          {"content",
                           {{{"type", "thinking"}, {"thinking", "why"}, {"signature", ""}},
                            {{"type", "text"}, {"text", "let me"}},
                            {{"type", "tool_use"}, {"id", "t1"}, {"name", "f"}, {"input", {{"a", 1}}}}}}},
                         {{"role", "user"},
                          {"content",
                           {{{"type", "tool_result"},
                             {"tool_use_id", "t1"},
                             {"is_error", true},
                             {"content", {{{"type", "text"}, {"text", "out"}}}}},
                            {{"type", "text"}, {"text", "and?"}}}}}};
  Json body = Body(messages);
  body["system"] = {{{"type", "text"}, {"text", "s1"}},
                    {{"type", "text"}, {"text", "s2"}, {"cache_control", {{"type", "ephemeral"}}}}};
  body["tools"] = Tools();
  body["thinking"] = {{"type", "adaptive"}};
  body["output_config"] = {{"effort", "max"}};
  body["metadata"] = {{"user_id", "u"}};
  body["context_management"] = {{"edits", {{{"type", "clear_thinking_20251015"}, {"keep", "all"}}}}};
  const std::string prompt = PromptOf(&api, body);
  for (const char* part :
       {"Effort: 100 ", "s1\n\ns2", "<｜User｜>a\n\nb<｜Assistant｜><think>why</think>let me\n\n<｜DSML｜ calls>",
        "<｜User｜><tool_result>out</tool_result>\n\nand?<｜Assistant｜><think>"}) {
    EXPECT_NE(prompt.find(part), std::string::npos) << part << " in " << prompt;
  }
  // A turn at the end is continued.
  EXPECT_TRUE(
      PromptOf(&api, Body({{{"role", "user"}, {"content", "hi"}}, {{"role", "assistant"}, {"content", "Well,"}}}))
          .ends_with("</think>Well,"));
  for (const Json& choice :
       {Json{{"type", "auto"}}, Json{{"type", "any"}}, Json{{"type", "none"}}, Json{{"type", "tool"}, {"name", "f"}}}) {
    Json chosen = With("tools", Tools());
    chosen["tool_choice"] = choice;
    EXPECT_EQ(api.Post(kPath, chosen)->status, 200) << choice;
  }
}

TEST(Messages, Refused) {
  TestApi api;
  const auto blocks = [](Json block, const char* role = "user") {
    return Json::array({{{"role", "user"}, {"content", "hi"}},
                        {{"role", role}, {"content", Json::array({std::move(block)})}},
                        {{"role", "user"}, {"content", "hi"}}});
  };
  const std::vector<std::tuple<std::string, std::string, Json>> bad = {
      {"max_tokens", "max_tokens", nullptr},
      {"max_tokens", "max_tokens", 0},
      {"messages", "messages", Json::array()},
      {"messages[0].role", "messages", Json::array({{{"role", "system"}, {"content", "x"}}})},
      {"messages[0].content", "messages", Json::array({{{"role", "user"}}})},
      {"messages[0].content", "messages", Json::array({{{"role", "user"}, {"content", Json::array()}}})},
      {"messages[1].content[0].type", "messages",
       blocks({{"type", "image"}, {"source", {{"type", "url"}, {"url", "http://169.254.169.254/"}}}})},
      {"messages[1].content[0].type", "messages", blocks({{"type", "document"}})},
      {"messages[1].content[0].type", "messages", blocks({{"type", "redacted_thinking"}, {"data", "x"}}, "assistant")},
      {"messages[1].content[0].text", "messages", blocks({{"type", "text"}})},
      {"messages[1].content[0].input", "messages",
       blocks({{"type", "tool_use"}, {"name", "f"}, {"input", "x"}}, "assistant")},
      {"tools[0].type", "tools", Json::array({{{"type", "bash_20250124"}, {"name", "bash"}}})},
      {"tools[0].strict", "tools", Json::array({{{"name", "f"}, {"strict", true}}})},
      {"tool_choice", "tool_choice", {{"type", "any"}}},
      {"thinking.type", "thinking", {{"type", "maybe"}}},
      {"thinking.budget_tokens", "thinking", {{"type", "enabled"}}},
      {"thinking.budget_tokens", "thinking", {{"type", "enabled"}, {"budget_tokens", 5}}},
      {"thinking.budget_tokens", "thinking", {{"type", "enabled"}, {"budget_tokens", 2000}}},
      {"stop_sequences", "stop_sequences", {""}},
      {"temperature", "temperature", -1},
      {"top_p", "top_p", 0},
      {"mcp_servers", "mcp_servers", Json::array({1})},
      {"container", "container", "x"},
      {"output_config.format", "output_config", {{"format", {{"type", "json_schema"}}}}},
      {"n", "n", 2},
      {"system", "system", 3},
      {"context_management.edits[0].type",
       "context_management",
       {{"edits", {{{"type", "clear_tool_uses_20250919"}}}}}}};
  for (const auto& [param, field, value] : bad) {
    SCOPED_TRACE(field + DumpJson(value));
    ExpectRefused(*api.Post(kPath, With(field, value)), 400, "invalid_request_error", param);
  }
  ExpectRefused(*api.Post(kPath, std::string("nope")), 400, "invalid_request_error", "body");
  ExpectRefused(*api.Post(kPath, With("model", "claude")), 404, "not_found_error", "model");
  ExpectRefused(*api.Post("/v1/messages/count_tokens", Json::object()), 400, "invalid_request_error", "messages");
  EXPECT_TRUE(api.engine.submitted().empty());
  api.engine.on_submit = [](const GenerationRequest&) { throw Error(ErrorCode::kOverloaded, "busy"); };
  const auto exchange = api.Post(kPath, Body());
  ExpectRefused(*exchange, 529, "overloaded_error", "busy");
  EXPECT_EQ(exchange->Header("Retry-After"), "1");
}

TEST(Messages, FailuresAreToldInTheStream) {
  TestApi api;
  api.engine.script = [](const GenerationRequest&, int) { return FakeScript{TestApi::Bytes("ab"), 1, false, true}; };
  ExpectRefused(*api.Post(kPath, Body()), 500, "api_error", "internal");
  const auto exchange = api.Post(kPath, With("stream", true));
  EXPECT_EQ(exchange->events.back().first, "error");
  EXPECT_EQ(ParseJson(exchange->events.back().second, "e").at("type"), "error");
}

}  // namespace
}  // namespace senko::api
