// The whole room around a fake engine: a request in, what the client sees out.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "api/context.h"
#include "api/fake_engine.h"
#include "api/routes.h"
#include "api/test_tokenizer.h"
#include "base/json.h"

namespace senko::api {

// Holds an exchange to its contract and keeps what was sent.
class FakeExchange : public Exchange {
 public:
  void Reply(int code, std::string_view type, std::string text,
             std::vector<std::pair<std::string, std::string>> extra) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(answered_ || begun) << "answered twice";
    status = code;
    body = std::move(text);
    headers = std::move(extra);
    EXPECT_EQ(type, "application/json");
    answered_ = true;
    done_.notify_all();
  }
  void BeginEvents() override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(answered_ || begun) << "answered twice";
    begun = true;
    status = 200;
  }
  void Event(std::string data, std::string_view name) override {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(begun && !answered_) << "an event outside a stream: " << data;
    EXPECT_EQ(data.find_first_of("\r\n"), std::string::npos);
    events.emplace_back(name, std::move(data));
    arrived_.notify_all();
  }
  void EndEvents() override {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(begun && !answered_);
    answered_ = true;
    done_.notify_all();
  }
  bool gone() const override { return gone_; }
  void OnGone(std::function<void()> callback) override {
    {
      const std::lock_guard lock(mutex_);
      if (!gone_) {
        callback_ = std::move(callback);
        return;
      }
    }
    callback();
  }

  void Leave() {
    std::function<void()> callback;
    {
      const std::lock_guard lock(mutex_);
      gone_ = true;
      callback = std::move(callback_);
    }
    if (callback) callback();
  }
  bool Wait(std::chrono::milliseconds limit = std::chrono::seconds(20)) {
    std::unique_lock lock(mutex_);
    return done_.wait_for(lock, limit, [&] { return answered_; });
  }
  bool WaitEvents(size_t count) {
    std::unique_lock lock(mutex_);
    return arrived_.wait_for(lock, std::chrono::seconds(20), [&] { return events.size() >= count; });
  }

  // To be read once answered.
  int status = 0;
  bool begun = false;
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  std::vector<std::pair<std::string, std::string>> events;  // name, data

  Json json() const { return ParseJson(body, "answer"); }
  std::string Header(std::string_view name) const {
    for (const auto& [key, value] : headers) {
      if (key == name) return value;
    }
    return {};
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable done_, arrived_;
  std::atomic<bool> gone_{false};
  bool answered_ = false;
  std::function<void()> callback_;
};

// How the requests ended that were counted.
class FakeMetrics : public RequestMetrics {
 public:
  void OnScheduled(double) override {}
  void OnFirstToken(double) override {}
  void OnTokens(int64_t, double) override {}
  void OnFinished(const RequestRecord& record) override {
    const std::lock_guard lock(mutex_);
    ends_.push_back(record.finish);
  }
  std::vector<std::string> Ends() {
    const std::lock_guard lock(mutex_);
    return ends_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> ends_;
};

// A vocabulary that can say `steps`, an engine that recites, and the routes.
class TestApi {
 public:
  explicit TestApi(std::vector<std::string> steps = {}, int64_t max_model_len = 4096,
                   const text::Tokenizer* other = nullptr, bool priorities = true, int64_t max_num_waiting = INT64_MAX)
      : own_(other == nullptr ? std::make_unique<text::Tokenizer>(ScriptTokenizer(steps)) : nullptr),
        tokenizer(other == nullptr ? *own_ : *other),
        steps_(static_cast<int32_t>(steps.size())),
        tools_prompt(text::ToolsPrompt::FromTemplate(kTestToolsTemplate, "test")),
        engine(Limits(tokenizer, max_model_len, max_num_waiting)) {
    ApiOptions options;
    options.model_names = {"senko-test", "an/alias"};
    options.default_thinking = false;
    options.priorities = priorities;
    context = std::make_unique<ApiContext>(engine, tokenizer, &tools_prompt, options, &metrics,
                                           [this](const RequestRecord& record) {
                                             const std::lock_guard lock(mutex_);
                                             records_.push_back(record);
                                           });
    routes = MakeRoutes(*context);
    engine.script = [this](const GenerationRequest&, int) { return FakeScript{AllSteps(), 1, false, false}; };
  }
  ~TestApi() {
    engine.Shutdown();
    context.reset();
  }

  std::vector<int32_t> AllSteps() const {
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < steps_; ++i) ids.push_back(kFirstStep + i);
    return ids;
  }
  // Every answer from now on: these tokens, `chunk` at a time.
  void Say(std::vector<int32_t> tokens, size_t chunk = 1) {
    engine.script = [tokens, chunk](const GenerationRequest&, int) { return FakeScript{tokens, chunk, false, false}; };
  }
  // Text as byte tokens.
  static std::vector<int32_t> Bytes(std::string_view text) {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(kTestControls + static_cast<unsigned char>(c));
    return ids;
  }
  void SayBytes(std::string_view text, size_t chunk = 1) { Say(Bytes(text), chunk); }

  std::shared_ptr<FakeExchange> Begin(const std::string& path, std::string body, const std::string& method = "POST",
                                      const std::string& key = {}) {
    auto exchange = std::make_shared<FakeExchange>();
    HttpRequest request;
    request.method = method;
    request.path = path;
    request.body = std::move(body);
    request.id = "request-1";
    request.api_key = key;
    for (const Route& route : routes) {
      const bool prefix = route.path.ends_with('/') && path.starts_with(route.path);
      if (route.method != method || (route.path != path && !prefix)) continue;
      route.handler(std::move(request), exchange);
      return exchange;
    }
    ADD_FAILURE() << "no route " << method << " " << path;
    return exchange;
  }
  std::shared_ptr<FakeExchange> Post(const std::string& path, const std::string& body, const std::string& key = {}) {
    auto exchange = Begin(path, body, "POST", key);
    EXPECT_TRUE(exchange->Wait()) << path << " was never answered: " << body.substr(0, 500);
    return exchange;
  }
  std::shared_ptr<FakeExchange> Post(const std::string& path, const Json& body, const std::string& key = {}) {
    return Post(path, DumpJson(body), key);
  }

  std::vector<RequestRecord> records() {
    const std::lock_guard lock(mutex_);
    return records_;
  }

 private:
  static EngineLimits Limits(const text::Tokenizer& tokenizer, int64_t max_model_len, int64_t max_num_waiting) {
    EngineLimits limits;
    limits.vocab_size = tokenizer.vocab_size();
    limits.max_model_len = max_model_len;
    limits.max_num_waiting = max_num_waiting;
    limits.eos_token = kTestEos;
    limits.image_token = tokenizer.AddedTokenId("<｜deepseek_image｜>").value_or(-1);
    return limits;
  }

  std::unique_ptr<text::Tokenizer> own_;

 public:
  const text::Tokenizer& tokenizer;

 private:
  int32_t steps_;

 public:
  text::ToolsPrompt tools_prompt;
  FakeMetrics metrics;
  FakeEngine engine;
  std::unique_ptr<ApiContext> context;
  std::vector<Route> routes;

 private:
  std::mutex mutex_;
  std::vector<RequestRecord> records_;
};

inline Json UserChat(const std::string& text = "hi") {
  return Json{{"messages", Json::array({{{"role", "user"}, {"content", text}}})}};
}

// The same with one more field.
inline Json ChatWith(const std::string& field, Json value) {
  Json body = UserChat();
  body[field] = std::move(value);
  return body;
}
// Raw text, so that any JSON can stand there.
inline std::string RawChat(const std::string& field, const std::string& value) {
  return R"({"messages":[{"role":"user","content":"hi"}],")" + field + "\":" + value + "}";
}

// {"error": {...}} with these; the message is bounded and there.
inline void ExpectError(const FakeExchange& exchange, int status, std::string_view param = {},
                        std::string_view code = {}) {
  EXPECT_EQ(exchange.status, status) << exchange.body;
  EXPECT_FALSE(exchange.begun);
  EXPECT_LT(exchange.body.size(), 4096u);
  const Json error = exchange.json().value("error", Json::object());
  EXPECT_FALSE(error.value("message", "").empty()) << exchange.body;
  if (!param.empty()) {
    EXPECT_EQ(error.value("param", Json()), Json(param)) << exchange.body;
  }
  if (!code.empty()) {
    EXPECT_EQ(error.value("code", Json()), Json(code)) << exchange.body;
  }
}

}  // namespace senko::api
