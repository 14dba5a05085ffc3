// How an answer ends that was cut, stopped, or could not go on (behaviours.md, 1 and 3).
#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <tuple>

#include "api/test_streams.h"

namespace senko::api {
namespace {

constexpr char kChat[] = "/v1/chat/completions";
constexpr char kResponses[] = "/v1/responses";
constexpr char kMessages[] = "/v1/messages";
constexpr char kCompletions[] = "/v1/completions";

const std::string kOpening = "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n";
const std::string kFirst = kOpening +
                           "<｜DSML｜ parameter name=\"a\" string=\"true\">rm -r /tmp/x</｜DSML｜ parameter>\n"
                           "<｜DSML｜ parameter name=\"b\" string=\"false\">[1, 2]</｜DSML｜ parameter>\n"
                           "</｜DSML｜ invoke>";

Json Tools() { return Json::array({{{"type", "function"}, {"function", {{"name", "f"}}}}}); }

// A chat in one of the three APIs that have calls, with at most one of them.
Json OneCall(const std::string& path, int64_t max_tokens) {
  if (path == kResponses) {
    return {{"input", "hi"},
            {"tools", Json::array({{{"type", "function"}, {"name", "f"}, {"parameters", Json::object()}}})},
            {"parallel_tool_calls", false},
            {"max_output_tokens", max_tokens}};
  }
  Json body = UserChat();
  body["max_tokens"] = max_tokens;
  if (path == kMessages) {
    body["tools"] = Json::array({{{"name", "f"}, {"input_schema", Json::object()}}});
    body["tool_choice"] = {{"type", "auto"}, {"disable_parallel_tool_use", true}};
  } else {
    body["tools"] = Tools();
    body["parallel_tool_calls"] = false;
  }
  return body;
}

Seen Ask(TestApi* api, const std::string& path, Json body) {
  const auto whole = api->Post(path, body);
  body["stream"] = true;
  const auto stream = api->Post(path, body);
  const SeenAnswer one = path == kChat        ? ChatWholeSeen(*whole)
                         : path == kResponses ? ResponsesWholeSeen(*whole)
                                              : MessagesWholeSeen(*whole);
  const SeenAnswer other = path == kChat        ? ChatStreamSeen(*stream, false)
                           : path == kResponses ? ResponsesStreamSeen(*stream)
                                                : MessagesStreamSeen(*stream);
  EXPECT_EQ(one.choices, other.choices);
  return one.choices.at(0);
}

// How requests were counted, behind the end of the last.
std::vector<std::string> EndsOf(TestApi* api) {
  for (int i = 0; i < 2000 && api->metrics.Ends().empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return api->metrics.Ends();
}

// Every place where the only call can be cut, by the length and by EOS. Nobody may take what is left of it for a call
// to run: only the whole call ends with tool_calls.
TEST(EndedAnswer, TheOnlyCallIsCompleteOrNotReportedAsSuch) {
  TestApi api;
  for (const std::string path : {kChat, kResponses, kMessages}) {
    SCOPED_TRACE(path);
    for (size_t cut = kOpening.size(); cut <= kFirst.size(); ++cut) {
      const bool is_whole = cut == kFirst.size();
      api.SayBytes(kFirst + "\n", 3);
      const Seen by_length = Ask(&api, path, OneCall(path, static_cast<int64_t>(cut)));
      EXPECT_EQ(by_length.finish, is_whole ? "tool_calls" : "length") << kFirst.substr(0, cut);
      ASSERT_EQ(by_length.calls.size(), 1u);
      api.SayBytes(kFirst.substr(0, cut), 5);
      if (path != kResponses) {
        EXPECT_EQ(Ask(&api, path, OneCall(path, 1000)).finish, is_whole ? "tool_calls" : "stop")
            << kFirst.substr(0, cut);
      } else {
        const Json response = api.Post(path, OneCall(path, 1000))->json();
        EXPECT_EQ(response.at("output")[0].at("status"), is_whole ? "completed" : "incomplete") << response;
      }
    }
  }
}

// A choice is over with its stop string, whatever the engine says of the rows that ran ahead of it.
TEST(EndedAnswer, AnErrorBehindAStopStringIsNobodys) {
  for (const bool stream : {false, true}) {
    TestApi api;
    api.engine.script = [](const GenerationRequest&, int choice) {
      FakeScript script{TestApi::Bytes(choice == 0 ? "ab." : std::string(40, 'c'))};
      script.fails = choice == 0;
      return script;
    };
    Json body = {{"prompt", "x"}, {"n", 2}, {"stop", "b"}, {"max_tokens", 40}, {"stream", stream}};
    const auto exchange = api.Post(kCompletions, body);
    const SeenAnswer answer = stream ? CompletionStreamSeen(*exchange) : CompletionWholeSeen(*exchange);
    EXPECT_EQ(answer.choices.at(0).content, "a");
    EXPECT_EQ(answer.choices.at(0).finish, "stop");
    EXPECT_EQ(answer.choices.at(1).content, std::string(40, 'c'));
    EXPECT_EQ(EndsOf(&api), std::vector<std::string>{"stop"});
  }
}

// What the request itself makes impossible is said to whoever can mend it; what failed here is not.
TEST(EndedAnswer, ARequestThatBarsEveryTokenIsTold) {
  TestApi api;
  for (const bool request_fault : {true, false}) {
    api.engine.script = [&](const GenerationRequest&, int) {
      return FakeScript{TestApi::Bytes("a"), 1, false, true, request_fault};
    };
    const auto whole = api.Post(kChat, UserChat());
    if (request_fault) {
      ExpectError(*whole, 400, "min_tokens");
      EXPECT_NE(whole->body.find("bad_words"), std::string::npos) << whole->body;
    } else {
      ExpectError(*whole, 500);
      EXPECT_EQ(whole->body.find("page"), std::string::npos) << whole->body;
    }
    const auto stream = api.Post(kChat, ChatWith("stream", true));
    ASSERT_GE(stream->events.size(), 2u);
    const Json error = ParseJson(stream->events[stream->events.size() - 2].second, "event").at("error");
    EXPECT_EQ(error.at("type"), request_fault ? "invalid_request_error" : "server_error") << error;
    const auto anthropic = api.Post(kMessages, ChatWith("max_tokens", 9));
    EXPECT_EQ(anthropic->status, request_fault ? 400 : 500);
  }
}

// What the client was sent is what is counted, whatever was said.
TEST(EndedAnswer, AnAnswerThatTheServerHadNoRoomForIsNoSuccess) {
  class Full : public FakeExchange {  // from the `room`-th event or the reply on
   public:
    Full(int room, int refusal) : room_(room), status_(refusal) {}
    void Reply(int code, std::string_view type, std::string text,
               std::vector<std::pair<std::string, std::string>> extra) override {
      refused_ = status_;
      FakeExchange::Reply(code, type, std::move(text), std::move(extra));
    }
    void Event(std::string data, std::string_view name) override {
      if (++events_ == room_) refused_ = status_;
      FakeExchange::Event(std::move(data), name);
    }
    bool gone() const override { return begun && refused_ != 0; }
    int refused() const override { return refused_; }

   private:
    const int room_, status_;
    int events_ = 0;
    std::atomic<int> refused_{0};
  };
  for (const auto& [stream, room, status] :
       {std::tuple{false, 0, 503}, std::tuple{false, 0, 400}, std::tuple{true, 2, 503}, std::tuple{true, 5, 503}}) {
    TestApi api;
    api.SayBytes("abc");
    const auto exchange = std::make_shared<Full>(room, status);
    HttpRequest request;
    request.body = DumpJson(ChatWith("stream", stream));
    for (const Route& route : api.routes) {
      if (route.path == kChat) route.handler(request, exchange);
    }
    EXPECT_EQ(EndsOf(&api), std::vector<std::string>{"error"});
    for (int i = 0; i < 2000 && api.records().empty(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ASSERT_EQ(api.records().size(), 1u);
    EXPECT_EQ(api.records()[0].finish, "error");
    EXPECT_EQ(api.records()[0].status, stream ? 200 : status);
    EXPECT_NE(api.records()[0].error.find("--max-buffered-answer-bytes"), std::string::npos);
  }
}

// A stream that breaks while it is written, under an engine that cannot be told: the request still ends, once.
TEST(EndedAnswer, AFaultWhileAFaultIsHandled) {
  class Broken : public FakeExchange {
   public:
    void Event(std::string data, std::string_view name) override {
      if (++events_ == 2) throw std::bad_alloc();
      FakeExchange::Event(std::move(data), name);
    }

   private:
    int events_ = 0;
  };
  TestApi api;
  api.SayBytes("abc");
  api.engine.on_cancel = [] { throw std::bad_alloc(); };
  const auto exchange = std::make_shared<Broken>();
  HttpRequest request;
  request.body = DumpJson(ChatWith("stream", true));
  for (const Route& route : api.routes) {
    if (route.path == kChat) route.handler(request, exchange);
  }
  ASSERT_TRUE(exchange->Wait());
  ASSERT_FALSE(exchange->events.empty());
  EXPECT_EQ(EndsOf(&api), std::vector<std::string>{"error"});
}

}  // namespace
}  // namespace senko::api
