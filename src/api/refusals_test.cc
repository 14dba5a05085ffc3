// What is refused, and in which words: whatever a body's names hold, fields that contradict each other or ask for
// something while empty, ranges.
#include <gtest/gtest.h>

#include "api/test_api.h"

namespace senko::api {
namespace {

using namespace std::string_literals;

constexpr char kPath[] = "/v1/chat/completions";

std::string MessageOf(const FakeExchange& exchange) { return exchange.json().at("error").at("message"); }

TEST(Refusals, NamesAreQuotedAndEscaped) {
  TestApi api;
  const std::vector<std::pair<std::string, std::string>> names = {
      {"other", "other"},
      {"a\0zzz"s, R"("a\u0000zzz")"},
      {"a\n\x1b[2J\x7f", R"("a\u000a\u001b[2J\u007f")"},
      {"", R"("")"},
      {"a \"b\\", R"("a \"b\\")"},
      {"\u202e\u00e9\U0001F30D", R"("\u202e\u00e9\u{1f30d}")"},
      {std::string(63, 'x') + "é" + "yyy", "\"" + std::string(63, 'x') + R"(\u00e9...")"},
      {std::string(100, 'x'), "\"" + std::string(64, 'x') + "...\""}};
  for (const auto& [name, shown] : names) {
    SCOPED_TRACE(shown);
    for (const char* path : {kPath, "/v1/completions", "/v1/responses", "/v1/messages", "/tokenize", "/detokenize"}) {
      Json body = {{"messages", UserChat().at("messages")}};
      if (path == "/v1/completions"s || path == "/tokenize"s) body = {{"prompt", "x"}};
      if (path == "/v1/responses"s) body = {{"input", "x"}};
      if (path == "/v1/messages"s) body["max_tokens"] = 5;
      if (path == "/detokenize"s) body = {{"tokens", {20}}};
      body[name] = 1;
      const auto exchange = api.Post(path, body);
      ExpectError(*exchange, 400);
      EXPECT_EQ(MessageOf(*exchange), shown + " is not a field of this request");
    }
    const auto inner = api.Post(kPath, ChatWith("chat_template_kwargs", {{name, 1}}));
    ExpectError(*inner, 400, "chat_template_kwargs." + shown);
    EXPECT_EQ(api.records().back().error, MessageOf(*inner)) << "the log has all of it, too";
  }
}

TEST(Refusals, EmptyConstraintsAreConstraints) {
  TestApi api;
  for (const char* field : {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs",
                            "grammar", "regex", "json_schema", "allowed_token_ids"}) {
    for (const Json& empty : {Json::object(), Json::array(), Json(""), Json(false)}) {
      ExpectError(*api.Post(kPath, ChatWith(field, empty)), 400, field, "unsupported");
      ExpectError(*api.Post("/v1/completions", Json{{"prompt", "x"}, {field, empty}}), 400, field, "unsupported");
    }
    EXPECT_EQ(api.Post(kPath, ChatWith(field, nullptr))->status, 200);
  }
}

TEST(Refusals, AnEmptySearchIsASearch) {
  TestApi api;
  ExpectError(*api.Post(kPath, ChatWith("web_search_options", Json::object())), 400, "web_search_options",
              "unsupported");
  EXPECT_EQ(api.Post(kPath, ChatWith("web_search_options", nullptr))->status, 200);
}

TEST(Refusals, ThinkingThatContradictsItself) {
  TestApi api;
  const Json off = {{"type", "disabled"}}, on = {{"type", "enabled"}};
  const auto post = [&](const Json& fields) {
    Json body = UserChat();
    for (const auto& [name, value] : fields.items()) body[name] = value;
    return api.Post(kPath, body);
  };
  const std::vector<std::tuple<Json, std::string, std::string>> bad = {
      {{{"thinking", off}, {"reasoning_effort", "high"}}, "reasoning_effort", "thinking"},
      {{{"thinking", off}, {"reasoning_effort", 3}}, "reasoning_effort", "thinking"},
      {{{"thinking", on}, {"reasoning_effort", "none"}}, "reasoning_effort", "thinking"},
      {{{"thinking", on}, {"chat_template_kwargs", {{"thinking", false}}}},
       "chat_template_kwargs.thinking",
       "thinking"},
      {{{"thinking", off}, {"chat_template_kwargs", {{"enable_thinking", true}}}},
       "chat_template_kwargs.enable_thinking",
       "thinking"},
      {{{"reasoning_effort", "none"}, {"chat_template_kwargs", {{"thinking", true}}}},
       "chat_template_kwargs.thinking",
       "reasoning_effort"},
      {{{"chat_template_kwargs", {{"thinking", false}, {"reasoning_effort", "max"}}}},
       "chat_template_kwargs.reasoning_effort",
       "chat_template_kwargs.thinking"},
      {{{"reasoning_effort", "low"}, {"chat_template_kwargs", {{"reasoning_effort", "max"}}}},
       "chat_template_kwargs.reasoning_effort",
       "reasoning_effort"}};
  for (const auto& [fields, param, other] : bad) {
    SCOPED_TRACE(DumpJson(fields));
    const auto exchange = post(fields);
    ExpectError(*exchange, 400, param);
    EXPECT_EQ(MessageOf(*exchange).find(param + " contradicts " + other), 0u) << MessageOf(*exchange);
  }
  for (const Json& fields : std::vector<Json>{{{"thinking", off}, {"reasoning_effort", "none"}},
                                              {{"thinking", off}, {"reasoning_effort", "medium"}},
                                              {{"thinking", on}, {"reasoning_effort", "high"}},
                                              {{"thinking", on}, {"chat_template_kwargs", {{"thinking", true}}}}}) {
    EXPECT_EQ(post(fields)->status, 200) << fields;
  }
  Json message = {{"max_tokens", 5}, {"messages", UserChat().at("messages")}, {"output_config", {{"effort", "none"}}}};
  EXPECT_EQ(api.Post("/v1/messages", message)->status, 200);
  message["thinking"] = {{"type", "adaptive"}};
  EXPECT_EQ(api.Post("/v1/messages", message)->status, 400);
}

TEST(Refusals, WordsSayWhatIsWrong) {
  TestApi api;
  const std::vector<std::tuple<std::string, Json, std::string>> bad = {
      {"bad_words", {std::string(10000, 'x')}, "bad_words must have strings of at most 4096 bytes"},
      {"bad_words", {""}, "bad_words must be a list of non-empty strings"},
      {"seed", uint64_t{1} << 63, "seed must be an integer from -9223372036854775808 to 9223372036854775807"},
      {"max_tokens", 0, "max_tokens must be an integer from 1 to 9223372036854775807"},
      {"best_of", 2, "best_of must be 1; ask for n choices instead"}};
  for (const auto& [field, value, words] : bad) {
    for (const bool chat : {true, false}) {
      Json body = chat ? UserChat() : Json{{"prompt", "x"}};
      body[field] = value;
      const auto exchange = api.Post(chat ? kPath : "/v1/completions", body);
      ExpectError(*exchange, 400, field);
      EXPECT_EQ(MessageOf(*exchange), words);
      body[field] = nullptr;
      body["best_of"] = 1;
      EXPECT_EQ(api.Post(chat ? kPath : "/v1/completions", body)->status, 200);
    }
  }
  Json both = UserChat();
  both["prompt"] = "x";
  const auto exchange = api.Post("/tokenize", both);
  ExpectError(*exchange, 400, "prompt");
  EXPECT_EQ(MessageOf(*exchange), "prompt and messages exclude each other; send one");
}

// A NUL is no end of a body.
TEST(Refusals, NothingStandsBehindANul) {
  TestApi api;
  EXPECT_EQ(api.Post(kPath, DumpJson(UserChat()) + "\n")->status, 200);
  ExpectError(*api.Post(kPath, DumpJson(UserChat()) + "\0junk"s), 400);
  ExpectError(*api.Post(kPath, DumpJson(UserChat()) + "\0"s), 400);
}

}  // namespace
}  // namespace senko::api
