// Keys, rates, error bodies and options.
#include "server/gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "server/error_body.h"

namespace senko::server {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

TEST(RateLimit, ABucketHoldsAMinute) {
  RateLimit limit(60, 2);
  auto now = std::chrono::steady_clock::now();
  for (int i = 0; i < 60; ++i) EXPECT_EQ(limit.Take(0, now), 0);
  EXPECT_EQ(limit.Take(0, now), 1);
  EXPECT_EQ(limit.Take(1, now), 0);
  now += milliseconds(999);
  EXPECT_EQ(limit.Take(0, now), 1);
  now += milliseconds(2);
  EXPECT_EQ(limit.Take(0, now), 0);
  EXPECT_EQ(limit.Take(0, now - milliseconds(500)), 1);  // a thread that looked at the clock earlier
  now += std::chrono::hours(5);
  int taken = 0;
  while (limit.Take(0, now) == 0) ++taken;
  EXPECT_EQ(taken, 60);

  RateLimit rare(1, 1);
  EXPECT_EQ(rare.Take(0, now), 0);
  EXPECT_EQ(rare.Take(0, now), 60);
  RateLimit none(0, 1);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(none.Take(0, now), 0);
}

TEST(ErrorBodies, AreJsonBelowFourKilobytes) {
  const std::string worst(100'000, '"');
  for (const char* path : {"/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions", ""}) {
    const bool anthropic = std::string_view(path).starts_with("/v1/messages");
    for (const int status : {400, 401, 404, 405, 408, 413, 429, 500, 503}) {
      const std::string text = HttpErrorBody(path, status, worst, "code");
      EXPECT_LE(text.size(), 4096u);
      const Json body = ParseJson(text, "error body");
      EXPECT_EQ(body["error"]["type"], ErrorType(status, StyleOfPath(path)));
      EXPECT_EQ(body.contains("type"), anthropic);
      EXPECT_EQ(body["error"].contains("code"), !anthropic);
      EXPECT_EQ(body["error"].contains("param"), !anthropic);
    }
  }
}

TEST(Routes, LongestPrefixWins) {
  const auto nothing = [](const api::HttpRequest&, const std::shared_ptr<api::Exchange>&) {};
  RouteTable table({{"GET", "/a", nothing},
                    {"POST", "/a", nothing},
                    {"GET", "/a/", nothing},
                    {"GET", "/a/b/", nothing},
                    {"POST", "/a/b/", nothing}});
  EXPECT_EQ(table.Find("/a").size(), 2u);
  EXPECT_EQ(table.Find("/a/x").at(0)->path, "/a/");
  EXPECT_EQ(table.Find("/a/b/x").size(), 2u);
  EXPECT_EQ(table.Find("/a/b").at(0)->path, "/a/");
  EXPECT_TRUE(table.Find("/ab").empty());
  EXPECT_TRUE(table.Find("").empty());
}

TEST(Options, AreCheckedByName) {
  CheckHttpOptions({});
  const auto refused = [](auto change, const char* flag) {
    HttpOptions options;
    change(options);
    try {
      CheckHttpOptions(options);
      FAIL() << flag;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.what(), HasSubstr(flag));
    }
  };
  refused([](HttpOptions& o) { o.host = ""; }, "--host");
  refused([](HttpOptions& o) { o.allowed_origins = {"https://a.b", ""}; }, "--allowed-origins");
  for (const char* origin : {"example.org", "https://a.b/", "https://a.b/c", "https://", "://a.b"}) {
    refused([origin](HttpOptions& o) { o.allowed_origins = {origin}; }, "--allowed-origins");
  }
  refused([](HttpOptions& o) { o.port = 65536; }, "--port");
  refused([](HttpOptions& o) { o.io_threads = 0; }, "--http-threads");
  refused([](HttpOptions& o) { o.io_threads = 65; }, "--http-threads");
  refused([](HttpOptions& o) { o.max_body_bytes = (int64_t{1} << 32) + 1; }, "--max-body-bytes");
  refused([](HttpOptions& o) { o.max_connections = 0; }, "--max-connections");
  refused([](HttpOptions& o) { o.max_requests_in_flight = -1; }, "--limit-concurrency");
  refused([](HttpOptions& o) { o.max_buffered_body_bytes = 1; }, "--max-buffered-body-bytes");
  refused([](HttpOptions& o) { o.max_buffered_answer_bytes = o.max_unsent_bytes - 1; }, "--max-buffered-answer-bytes");
  refused([](HttpOptions& o) { o.timeout_body = milliseconds(0); }, "--timeout-body");
  refused([](HttpOptions& o) { o.api_keys = {"a b"}; }, "--api-key");
  refused([](HttpOptions& o) { o.api_keys = {""}; }, "--api-key");
}

TEST(Gate, PlacesAreCountedAcrossThreads) {
  HttpOptions options;
  options.max_requests_in_flight = 5;
  auto gate = std::make_shared<Gate>(options, std::vector<api::Route>(), HttpHooks());
  std::atomic<int> most = 0, now = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5000; ++i) {
        const std::shared_ptr<void> first = gate->Admit().place, second = gate->Admit().place;
        const int held = (first ? 1 : 0) + (second ? 1 : 0);
        const int here = now += held;
        int seen = most;
        while (here > seen && !most.compare_exchange_weak(seen, here)) {
        }
        now -= held;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most, 5);
  EXPECT_GE(most, 2);
  EXPECT_EQ(gate->stats().requests_in_flight, 0);
}

}  // namespace
}  // namespace senko::server
