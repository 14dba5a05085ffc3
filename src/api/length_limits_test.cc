// Long texts: refused before they are read where that can be known, read no further than anybody can use, and no longer
// than somebody waits.
#include <gtest/gtest.h>

#include "api/read_text.h"
#include "api/test_api.h"

namespace senko::api {
namespace {

constexpr int64_t kLength = 64;  // of the model; the test vocabulary has no token of more than 128 bytes

struct RouteCase {
  const char* path;
  std::function<Json(const std::string&)> body;
};
Json Chat(const std::string& text) { return UserChat(text); }
const std::vector<RouteCase>& Routes() {
  static const std::vector<RouteCase> routes = {
      {"/v1/chat/completions", Chat},
      {"/v1/completions",
       [](const std::string& text) {
         return Json{{"prompt", text}};
       }},
      {"/v1/completions",
       [](const std::string& text) {
         return Json{{"prompt", {"a", text}}};
       }},
      {"/v1/responses",
       [](const std::string& text) {
         return Json{{"input", text}};
       }},
      {"/v1/messages",
       [](const std::string& text) {
         Json body = UserChat(text);
         body["max_tokens"] = 1;
         return body;
       }},
  };
  return routes;
}

std::string MessageOf(const FakeExchange& exchange) { return exchange.json().at("error").at("message"); }

TEST(LengthLimits, APromptOverTheLengthSaysByHowMuchAndAVeryLongOneAtLeast) {
  TestApi api({}, kLength);
  for (const RouteCase& route : Routes()) {
    SCOPED_TRACE(route.path);
    EXPECT_EQ(api.Post(route.path, route.body("x"))->status, 200);
    const auto over = api.Post(route.path, route.body(std::string(kLength, 'x')));
    EXPECT_EQ(over->status, 400);
    EXPECT_NE(MessageOf(*over).find("maximum context length is 64 tokens, but the prompt has"), std::string::npos);
    EXPECT_EQ(MessageOf(*over).find("at least"), std::string::npos) << over->body;
    const auto far = api.Post(route.path, route.body(std::string(size_t{1} << 20, 'x')));
    EXPECT_EQ(far->status, 400);
    EXPECT_NE(MessageOf(*far).find("maximum context length is 64 tokens, but the prompt has at least"),
              std::string::npos)
        << far->body;
    if (std::string_view(route.path) != "/v1/messages") ExpectError(*far, 400, "prompt", "context_length_exceeded");
  }
}

// Where the bytes say nothing, tokens are made until they are too many to be of use.
TEST(LengthLimits, APromptIsCountedSoFarAndNoFurther) {
  TestApi api({}, 4096);
  for (const RouteCase& route : Routes()) {
    SCOPED_TRACE(route.path);
    const auto counted = api.Post(route.path, route.body(std::string(60'000, 'x')));
    EXPECT_EQ(counted->status, 400);
    EXPECT_NE(MessageOf(*counted).find("the prompt has 600"), std::string::npos) << counted->body;
    const auto not_counted = api.Post(route.path, route.body(std::string(80'000, 'x')));
    EXPECT_EQ(not_counted->status, 400);
    EXPECT_NE(MessageOf(*not_counted).find("the prompt has at least 65537,"), std::string::npos) << not_counted->body;
  }
}

// What a client that has gone asked for is left where it is found.
class Leaver : public FakeExchange {
 public:
  explicit Leaver(int looks) : looks_(looks) {}
  bool gone() const override { return ++seen_ > looks_; }
  int seen() const { return seen_; }

 private:
  const int looks_;
  mutable std::atomic<int> seen_{0};
};

TEST(LengthLimits, NobodyReadsForAClientThatHasGone) {
  TestApi api({}, int64_t{4} << 20);
  const std::string text(size_t{1} << 20, 'x');
  const std::vector<RouteCase> others = {
      {"/tokenize",
       [](const std::string& t) {
         return Json{{"prompt", t}};
       }},
      {"/tokenize",
       [](const std::string& t) {
         return Json{{"prompt", t}, {"parse_special", false}};
       }},
      {"/tokenize", Chat},
      {"/v1/messages/count_tokens", Chat},
  };
  std::vector<RouteCase> all = Routes();
  all.insert(all.end(), others.begin(), others.end());
  for (const RouteCase& one : all) {
    SCOPED_TRACE(one.path);
    const auto leaver = std::make_shared<Leaver>(3);
    const size_t before = api.records().size();
    for (const Route& route : api.routes) {
      if (route.path != one.path) continue;
      HttpRequest request;
      request.body = DumpJson(one.body(text));
      route.handler(std::move(request), leaver);
    }
    for (int i = 0; i < 2000 && api.records().size() == before; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ASSERT_EQ(api.records().size(), before + 1);
    EXPECT_EQ(api.records().back().status, 499);
    EXPECT_EQ(api.records().back().finish, "cancelled");
    EXPECT_LE(leaver->seen(), 6) << "it was looked at and read on";
  }
  EXPECT_TRUE(api.engine.submitted().empty());
}

// The text would be refused for its length, were it looked at.
TEST(LengthLimits, CheapRefusalsComeBeforeTheText) {
  TestApi api({}, kLength);
  const std::string text(size_t{1} << 16, 'x');
  for (const RouteCase& route : Routes()) {
    SCOPED_TRACE(route.path);
    for (const char* field : {"nonsense", "temperature", "max_tokens", "max_output_tokens"}) {
      Json body = route.body(text);
      body[field] = -1;
      const auto refused = api.Post(route.path, body);
      EXPECT_EQ(refused->status, 400);
      EXPECT_TRUE(MessageOf(*refused).starts_with(field)) << refused->body;
    }
  }
  for (const char* path : {"/v1/chat/completions", "/v1/completions"}) {
    Json body = UserChat(text);
    if (path == std::string_view("/v1/completions")) body = {{"prompt", text}};
    body["max_tokens"] = 2;
    body["min_tokens"] = 3;
    ExpectError(*api.Post(path, body), 400, "min_tokens");
  }
  Json many = {{"prompt", Json::array()}, {"n", 128}};
  for (int i = 0; i < 17; ++i) many["prompt"].push_back(text);
  ExpectError(*api.Post("/v1/completions", many), 400, "n");
}

TEST(LengthLimits, CountingHasABound) {
  TestApi api({}, kLength);
  const int64_t most = MostTokens(api.engine.limits());
  EXPECT_EQ(most, 1 << 20);
  const std::string fits(static_cast<size_t>(most), 'x'), over = fits + "x";
  EXPECT_EQ(api.Post("/tokenize", Json{{"prompt", fits}})->json().at("count"), most);
  ExpectError(*api.Post("/tokenize", Json{{"prompt", over}}), 400, "prompt", "context_length_exceeded");
  ExpectError(*api.Post("/tokenize", UserChat(over)), 400, "prompt", "context_length_exceeded");
  EXPECT_EQ(api.Post("/v1/messages/count_tokens", UserChat(over))->status, 400);
  const auto counted = api.Post("/v1/messages/count_tokens", UserChat(fits.substr(1000)));
  EXPECT_GT(counted->json().at("input_tokens").get<int64_t>(), most - 1000);
  const auto ids = [](int64_t count) { return Json{{"tokens", Json::array_t(static_cast<size_t>(count), Json(20))}}; };
  EXPECT_EQ(api.Post("/detokenize", ids(most))->status, 200);
  ExpectError(*api.Post("/detokenize", ids(most + 1)), 400, "tokens");
  EngineLimits limits;
  limits.max_model_len = int64_t{1} << 20;
  EXPECT_EQ(MostTokens(limits), int64_t{1} << 21);
}

// The text of prompts times the choices that repeat it: 2^25 bytes and not one more, streamed or not.
TEST(LengthLimits, EchoHasABound) {
  TestApi api({}, int64_t{1} << 20);
  api.engine.on_submit = [](const GenerationRequest&) { throw Error(ErrorCode::kOverloaded, "seen"); };
  const std::string text(size_t{1} << 18, 'x');
  for (const bool stream : {false, true}) {
    Json body = {{"prompt", text}, {"echo", true}, {"n", 128}, {"stream", stream}, {"max_tokens", 1}};
    ExpectError(*api.Post("/v1/completions", body), 503);
    body["prompt"] = text + "x";
    ExpectError(*api.Post("/v1/completions", body), 400, "echo");
    body["prompt"] = {text, "x"};
    ExpectError(*api.Post("/v1/completions", body), 400, "echo");
    body["echo"] = false;
    ExpectError(*api.Post("/v1/completions", body), 503);
  }
}

// A remembered turn is put in place once, however often a conversation names it.
TEST(LengthLimits, ARememberedTurnIsThereOnce) {
  TestApi api({}, 4096);
  const std::string call = "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  const std::string reasoning(500, 'r');  // one id each; left out of what comes back
  Json body = UserChat();
  body["tools"] = Json::array({{{"type", "function"}, {"function", {{"name", "f"}}}}});
  body["chat_template_kwargs"] = {{"thinking", true}};
  api.SayBytes(reasoning + "</think>" + call, 50);
  const Json message = api.Post("/v1/chat/completions", body)->json().at("choices")[0].at("message");
  const size_t first = api.engine.submitted().back().prompt.size();
  Json turn = {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", message.at("tool_calls")}};
  size_t sizes[2];
  for (const size_t times : {1, 4}) {
    Json again = body;
    for (size_t i = 0; i < times; ++i) {
      again["messages"].push_back(turn);
      again["messages"].push_back({{"role", "user"}, {"content", "u"}});
    }
    EXPECT_EQ(api.Post("/v1/chat/completions", again)->status, 200);
    sizes[times == 4] = api.engine.submitted().back().prompt.size();
  }
  EXPECT_GT(sizes[0], first + 500);
  EXPECT_LT(sizes[1], sizes[0] + 3 * 300);
}

}  // namespace
}  // namespace senko::api
