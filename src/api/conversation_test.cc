// Messages, tools and modes of a chat: what becomes of them in the prompt (behaviours.md, 3 and 4).
#include <gtest/gtest.h>

#include "api/test_streams.h"

namespace senko::api {
namespace {

constexpr char kPath[] = "/v1/chat/completions";

TEST(Conversations, OddHistories) {
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

TEST(Conversations, ToolsAndChoices) {
  TestApi api;
  const Json f = {
      {"type", "function"},
      {"function", {{"name", "f"}, {"description", nullptr}, {"parameters", {{"type", "object"}}}, {"strict", false}}}};
  const auto ask = [&](const Json& tools, const Json& choice) {
    Json body = ChatWith("tools", tools);
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

TEST(Conversations, ModesAndEffort) {
  TestApi api;
  const auto prompt = [&](const Json& body) {
    const auto exchange = api.Post(kPath, body);
    EXPECT_EQ(exchange->status, 200) << exchange->body;
    return api.tokenizer.Decode(api.engine.submitted().back().prompt, false);
  };
  EXPECT_TRUE(prompt(UserChat()).ends_with("</think>"));
  for (const char* field : {"thinking", "enable_thinking"}) {
    EXPECT_TRUE(prompt(ChatWith("chat_template_kwargs", {{field, true}})).ends_with("<think>"));
  }
  EXPECT_TRUE(prompt(ChatWith("thinking", {{"type", "enabled"}})).ends_with("<think>"));
  const std::vector<std::pair<Json, std::string>> efforts = {{"low", "50"},  {"minimal", "50"}, {"medium", "75"},
                                                             {"high", "75"}, {"xhigh", "75"},   {"max", "100"},
                                                             {1, "1"},       {100, "100"},      {42, "42"}};
  for (const auto& [effort, number] : efforts) {
    Json body = ChatWith("chat_template_kwargs", {{"thinking", true}, {"reasoning_effort", effort}});
    EXPECT_NE(prompt(body).find("Reasoning Effort: " + number + " "), std::string::npos) << effort;
    body = ChatWith("chat_template_kwargs", {{"thinking", true}});
    body["reasoning_effort"] = effort;
    EXPECT_NE(prompt(body).find("Reasoning Effort: " + number + " "), std::string::npos) << effort;
  }
  EXPECT_TRUE(prompt(ChatWith("reasoning_effort", "none")).ends_with("</think>"));
  // The server has thinking off; who asks for an effort wants it on, but for the one that clients send unasked.
  for (const Json& effort : {Json("minimal"), Json("high"), Json(42)}) {
    EXPECT_TRUE(prompt(ChatWith("reasoning_effort", effort)).ends_with("<think>")) << effort;
    EXPECT_TRUE(prompt(ChatWith("chat_template_kwargs", {{"reasoning_effort", effort}})).ends_with("<think>"));
  }
  EXPECT_TRUE(prompt(ChatWith("reasoning_effort", "medium")).ends_with("</think>"));
  for (const Json& bad : {Json("lots"), Json(0), Json(101), Json(true), Json(7.5), Json("")}) {
    ExpectError(*api.Post(kPath, ChatWith("reasoning_effort", bad)), 400, "reasoning_effort");
  }
  ExpectError(*api.Post(kPath, ChatWith("chat_template_kwargs", {{"thinking", 1}})), 400,
              "chat_template_kwargs.thinking");
  ExpectError(*api.Post(kPath, ChatWith("chat_template_kwargs", {{"other", 1}})), 400, "chat_template_kwargs.other");
  ExpectError(*api.Post(kPath, ChatWith("chat_template_kwargs", {{"thinking", true}, {"enable_thinking", false}})), 400,
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
  ExpectError(*api.Post(kPath, ChatWith("continue_final_message", true)), 400, "continue_final_message");
  ExpectError(*api.Post(kPath, ChatWith("add_generation_prompt", false)), 400, "add_generation_prompt");
}

TEST(Conversations, WordsNeverBecomeControlTokens) {
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

}  // namespace
}  // namespace senko::api
