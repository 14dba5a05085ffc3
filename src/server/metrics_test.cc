#include "server/metrics.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <thread>

#include "server/engine_metrics.h"

namespace senko::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Metrics, TextHoldsWhatWasCounted) {
  MetricsRegistry registry({{"model_name", "flash \"x\""}, {"engine", "0"}});
  MetricsRegistry::Counter* a = registry.AddCounter("senko:c_total", "help", {{"kind", "a"}});
  MetricsRegistry::Counter* b = registry.AddCounter("senko:c_total", "help", {{"kind", "b"}});
  MetricsRegistry::Histogram* h = registry.AddHistogram("senko:h_seconds", "help", {0.5, 2});
  registry.AddSamples([] {
    return std::vector<MetricsRegistry::Sample>{{MetricsRegistry::Sample::Kind::kGauge, "senko:g", "help", 0.25}};
  });
  a->Add(2);
  b->Add(1);
  a->Add(1);
  for (const double value : {0.5, 0.6, 3.0, 4.0}) h->Observe(value);
  const std::string text = registry.Text();
  const std::string labels = R"(engine="0",model_name="flash \"x\"")";
  EXPECT_THAT(text, HasSubstr("# TYPE senko:c_total counter\n"));
  EXPECT_THAT(text, HasSubstr("senko:c_total{" + labels + ",kind=\"a\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("senko:c_total{" + labels + ",kind=\"b\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE senko:g gauge\nsenko:g{" + labels + "} 0.25\n"));
  EXPECT_THAT(text, HasSubstr("senko:h_seconds_count{" + labels + "} 4\n"));
  EXPECT_THAT(text, HasSubstr("senko:h_seconds_bucket{" + labels + ",le=\"0.5\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("senko:h_seconds_bucket{" + labels + ",le=\"2\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("senko:h_seconds_bucket{" + labels + ",le=\"+Inf\"} 4\n"));
}

TEST(Metrics, NothingIsLostBetweenThreads) {
  MetricsRegistry registry({});
  MetricsRegistry::Counter* counter = registry.AddCounter("c", "help");
  MetricsRegistry::Histogram* histogram = registry.AddHistogram("h", "help", {1});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10'000; ++i) {
        counter->Add(1);
        histogram->Observe(i % 2 == 0 ? 0.5 : 1.5);
      }
    });
  }
  for (int i = 0; i < 20; ++i) registry.Text();
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(registry.Text(), HasSubstr("c 40000\n"));
  EXPECT_THAT(registry.Text(), HasSubstr("h_bucket{le=\"1\"} 20000\n"));
  EXPECT_THAT(registry.Text(), HasSubstr("h_count 40000\n"));
}

TEST(EngineMetrics, NamesAndValues) {
  MetricsRegistry registry({{"model_name", "m"}, {"engine", "0"}});
  std::optional<EngineStats> stats;
  EngineMetrics metrics(
      &registry, [&] { return stats; }, [] { return HttpStats{.connections = 7, .no_room = 8}; });
  EXPECT_THAT(registry.Text(), Not(HasSubstr("num_requests_running")));
  stats = EngineStats{.running = 3, .waiting = 4, .pages_in_use = 5, .num_pages = 10, .preemptions = 6};
  stats->prompt_tokens = 11;
  stats->generation_tokens = 12;
  stats->prefix_queries = 13;
  stats->prefix_hits = 14;
  stats->replayed_tokens = 15;
  stats->trimmed_rows = 16;
  stats->slots_in_use = 17;
  stats->compute_cpu_seconds = 18.25;
  stats->workspace_bytes = 19;
  metrics.OnScheduled(0.1);
  metrics.OnFirstToken(0.2);
  metrics.OnTokens(4, 0.4);
  api::RequestRecord record;
  record.status = 200;
  record.total_s = 1.5;
  for (const char* finish : {"stop", "tool_calls", "length", "cancelled", "error"}) {
    record.finish = finish;
    metrics.OnFinished(record);
  }
  const std::string text = registry.Text();
  const std::string labels = R"({engine="0",model_name="m"} )";
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{
           {"num_requests_running", "3"},
           {"num_requests_waiting", "4"},
           {"kv_cache_usage_perc", "0.5"},
           {"num_preemptions_total", "6"},
           {"prompt_tokens_total", "11"},
           {"generation_tokens_total", "12"},
           {"prefix_cache_queries_total", "13"},
           {"prefix_cache_hits_total", "14"},
           {"replayed_tokens_total", "15"},
           {"trimmed_rows_total", "16"},
           {"kv_cache_slots_in_use", "17"},
           {"compute_cpu_seconds_total", "18.25"},
           {"workspace_bytes", "19"},
           {"http_connections", "7"},
           {"http_no_room_total", "8"},
           {"request_queue_time_seconds_count", "1"},
           {"time_to_first_token_seconds_count", "1"},
           {"inter_token_latency_seconds_count", "4"},
           {"e2e_request_latency_seconds_count", "5"},
       }) {
    EXPECT_THAT(text, HasSubstr("\nsenko:" + name + labels + value + "\n")) << text;
  }
  for (const auto& [reason, count] :
       std::map<std::string, int>{{"stop", 2}, {"length", 1}, {"abort", 1}, {"error", 1}}) {
    EXPECT_THAT(text, HasSubstr("finished_reason=\"" + reason + "\"} " + std::to_string(count) + "\n"));
  }
}

double Value(const std::string& text, const std::string& name) {
  const size_t at = text.find("\n" + name + " ");  // no labels
  if (at == std::string::npos) return NAN;
  return std::strtod(text.c_str() + at + name.size() + 2, nullptr);
}

TEST(EngineMetrics, TheProcessUnderPrometheusNames) {
  MetricsRegistry registry({{"model_name", "m"}, {"engine", "0"}});
  const EngineMetrics metrics(
      &registry, [] { return std::nullopt; }, [] { return HttpStats{}; });
  const std::string before = registry.Text();
  constexpr size_t kBytes = size_t{64} << 20;
  const std::vector<char> memory(kBytes, 1);
  const int file = open("/dev/null", O_RDONLY);
  rusage start{}, now{};
  getrusage(RUSAGE_SELF, &start);
  const auto user = [](const rusage& usage) { return usage.ru_utime.tv_sec + 1e-6 * usage.ru_utime.tv_usec; };
  do {
    getrusage(RUSAGE_SELF, &now);
  } while (user(now) < user(start) + 0.05);
  const std::string after = registry.Text();
  close(file);
  const auto moved = [&](const char* name) { return Value(after, name) - Value(before, name); };
  EXPECT_GE(moved("process_cpu_seconds_total"), 0.05);
  EXPECT_LE(Value(after, "process_cpu_seconds_total"), user(now) + now.ru_stime.tv_sec + 60);  // and not since boot
  EXPECT_GE(moved("process_resident_memory_bytes"), memory.size() * 0.9);
  EXPECT_EQ(moved("process_open_fds"), 1);
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_EQ(Value(after, "process_max_fds"), static_cast<double>(limit.rlim_cur));
  EXPECT_THAT(after, HasSubstr("# TYPE process_cpu_seconds_total counter\n"));
}

}  // namespace
}  // namespace senko::server
