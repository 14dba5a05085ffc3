// The two halves of a request's line.
#include "server/request_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "base/json.h"

namespace senko::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

AccessRecord Http(uint64_t number) {
  AccessRecord record;
  record.id = "id-" + std::to_string(number);
  record.method = "POST";
  record.path = "/v1/completions";
  record.status = 200;
  record.bytes = 1000 + number;
  record.seconds = 2.5;
  record.key_hash = "0badcafe";
  record.number = number;
  return record;
}

api::RequestRecord Api(uint64_t number) {
  api::RequestRecord record;
  record.id = "id-" + std::to_string(number);
  record.number = number;
  record.route = "/v1/completions";
  record.model = "flash";
  record.submitted = true;
  record.status = 200;
  record.stream = true;
  record.finish = "length";
  record.error = "not for this line";
  record.choices = 2;
  record.prompt_tokens = static_cast<int64_t>(100 + number);
  record.cached_tokens = 64;
  record.completion_tokens = 30;
  record.reasoning_tokens = 20;
  record.queue_s = 0.25;
  record.first_token_s = 0.5;
  record.total_s = 2;
  return record;
}

TEST(RequestLines, HoldWhatBothKnow) {
  std::vector<std::string> lines;
  RequestLines log([&](std::string_view line) { lines.emplace_back(line); });
  log.OnApi(Api(1));
  log.OnHttp(Http(2));
  EXPECT_TRUE(lines.empty());
  log.OnHttp(Http(1));
  log.OnApi(Api(2));
  ASSERT_EQ(lines.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    const Json line = ParseJson(lines[i], "line");
    EXPECT_EQ(lines[i].find('\n'), std::string::npos);
    const Json wanted = {{"id", "id-" + std::to_string(i + 1)},
                         {"method", "POST"},
                         {"path", "/v1/completions"},
                         {"status", 200},
                         {"bytes", 1001 + i},
                         {"seconds", 2.5},
                         {"gone", false},
                         {"key", "0badcafe"},
                         {"route", "/v1/completions"},
                         {"model", "flash"},
                         {"finish_reason", "length"},
                         {"stream", true},
                         {"choices", 2},
                         {"prompt_tokens", 101 + i},
                         {"cached_tokens", 64},
                         {"completion_tokens", 30},
                         {"reasoning_tokens", 20},
                         {"queue_seconds", 0.25},
                         {"ttft_seconds", 0.5},
                         {"e2e_seconds", 2.0}};
    for (const auto& [name, value] : wanted.items()) EXPECT_EQ(line.value(name, Json()), value) << name;
    EXPECT_EQ(line.size(), wanted.size() + 1) << lines[i];  // and the time
    EXPECT_THAT(lines[i], Not(HasSubstr("not for this line")));
  }

  AccessRecord no_room = Http(0);
  no_room.no_room = true;
  EXPECT_EQ(ParseJson(AccessLine(no_room), "line").at("no_room"), true);

  log.OnHttp(Http(0));  // /health: nobody else knows of it
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_THAT(lines[2], Not(HasSubstr("route")));

  api::RequestRecord refused = Api(3);  // no engine: no tokens, and no time that never was
  refused.submitted = false;
  refused.finish = "error";
  refused.queue_s = refused.first_token_s = -1;
  log.OnApi(refused);
  log.OnHttp(Http(3));
  ASSERT_EQ(lines.size(), 4u);
  const Json line = ParseJson(lines[3], "line");
  EXPECT_EQ(line.at("finish_reason"), "error");
  EXPECT_EQ(line.at("e2e_seconds"), 2.0);
  for (const char* name : {"prompt_tokens", "completion_tokens", "queue_seconds", "ttft_seconds"}) {
    EXPECT_FALSE(line.contains(name)) << name;
  }
}

TEST(RequestLines, OneForEachWhateverTheOrder) {
  constexpr int kRequests = 4000;
  std::mutex mutex;
  std::multiset<std::string> ids;
  RequestLines log([&](std::string_view line) {
    const Json read = ParseJson(line, "line");
    const std::lock_guard lock(mutex);
    ids.insert(read.at("id").get<std::string>() + " " + std::to_string(read.at("prompt_tokens").get<int>()));
  });
  std::vector<std::thread> threads;
  for (int half = 0; half < 2; ++half) {
    threads.emplace_back([&, half] {
      std::vector<uint64_t> order;
      for (int i = 1; i <= kRequests; ++i) order.push_back(static_cast<uint64_t>(i));
      std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(half)));
      for (const uint64_t number : order) half == 0 ? log.OnHttp(Http(number)) : log.OnApi(Api(number));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ids.size(), static_cast<size_t>(kRequests));
  for (int i = 1; i <= kRequests; ++i) {
    EXPECT_EQ(ids.count("id-" + std::to_string(i) + " " + std::to_string(100 + i)), 1u);
  }
}

TEST(RequestLines, ALostHalfIsNoLeak) {
  size_t lines = 0;
  RequestLines log([&](std::string_view) { ++lines; });
  for (uint64_t number = 1; number <= (1 << 16) + 10; ++number) log.OnHttp(Http(number));
  EXPECT_EQ(lines, 10u);
}

}  // namespace
}  // namespace senko::server
