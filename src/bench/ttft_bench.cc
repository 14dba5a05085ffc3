#include "bench/ttft_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "base/random.h"
#include "bench/measure.h"
#include "runtime/prompt_runner.h"

namespace senko::bench {
namespace {

// Random ids that are no image tokens.
void AppendRandom(const config::ModelConfig& config, int64_t count, uint64_t seed, std::vector<int32_t>* ids) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t word = PhiloxDraw(seed, static_cast<uint64_t>(i), 0).word[0];
    int64_t id = word % config.vocab_size;
    if (id == config.image_token_id) id = 0;
    ids->push_back(static_cast<int32_t>(id));
  }
}

double IndexSeconds(const runtime::Profile& profile) {
  double seconds = 0;
  for (const char* name : {"index_query", "select"}) {
    const auto found = profile.ops.find(name);
    if (found != profile.ops.end()) seconds += found->second.seconds;
  }
  return seconds;
}

}  // namespace

std::vector<TtftBenchResult> BenchTtft(runtime::Executor& executor, cache::SlotPool& slots,
                                       const TtftBenchParams& params, runtime::Profile& profile,
                                       const ProgressSink& progress) {
  const config::ModelConfig& config = executor.model().config();
  std::vector<int64_t> lengths = params.cached_tokens;
  std::sort(lengths.begin(), lengths.end());  // a longer prefix then begins with a shorter one's pages
  engine::SchedulerOptions options;
  options.max_rows = executor.max_rows();
  options.max_model_len = lengths.back() + params.new_tokens + 1;
  runtime::PromptRunner runner(executor, slots, options);
  std::vector<int32_t> prefix;
  AppendRandom(config, lengths.back(), 1, &prefix);
  std::vector<float> logits(static_cast<size_t>(config.vocab_size));
  uint64_t seed = 2, done = 0;
  std::vector<TtftBenchResult> results;
  for (const int64_t cached : lengths) {
    const std::span<const int32_t> known = std::span(prefix).first(static_cast<size_t>(cached));
    runner.Run(known, {}, "", nullptr);
    TtftBenchResult result;
    std::vector<double> ttft, index, other;
    for (int repeat = 0; repeat <= params.repeats; ++repeat) {  // the first one warms up
      std::vector<int32_t> prompt(known.begin(), known.end());
      AppendRandom(config, params.new_tokens, seed++, &prompt);  // new ones, that nobody has cached
      const uint64_t rows = runner.stats().encoder_rows;
      profile.Clear();
      const auto start = std::chrono::steady_clock::now();
      result.cached_tokens = runner.Run(prompt, {}, "", [&](std::span<const int64_t> positions) {
        if (positions.empty() || positions.back() + 1 != static_cast<int64_t>(prompt.size())) return;
        executor.Logits(static_cast<int64_t>(positions.size()) - 1, 1, logits.data(), nullptr);
      });
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      SENKO_CHECK(result.cached_tokens == cached);
      result.rows_run = static_cast<int64_t>(runner.stats().encoder_rows - rows);
      if (repeat == 0) continue;
      ttft.push_back(seconds);
      index.push_back(IndexSeconds(profile));
      other.push_back(seconds - index.back());
      if (progress) progress({"ttft", ++done, lengths.size() * static_cast<uint64_t>(params.repeats), "turns"});
    }
    result.ttft_seconds = Median(ttft);
    result.index_seconds = Median(index);
    result.other_seconds = Median(other);
    results.push_back(result);
  }
  return results;
}

std::string ToText(std::span<const TtftBenchResult> results) {
  std::string text =
      fmt::format("{:>8} {:>8} {:>10} {:>10} {:>10}\n", "cached", "rows run", "TTFT ms", "index ms", "other ms");
  for (const TtftBenchResult& r : results) {
    text += fmt::format("{:>8} {:>8} {:>10.2f} {:>10.2f} {:>10.2f}\n", r.cached_tokens, r.rows_run,
                        r.ttft_seconds * 1e3, r.index_seconds * 1e3, r.other_seconds * 1e3);
  }
  return text;
}

Json ToJson(std::span<const TtftBenchResult> results) {
  Json json = Json::array();
  for (const TtftBenchResult& r : results) {
    json.push_back({{"cached_tokens", r.cached_tokens},
                    {"rows_run", r.rows_run},
                    {"ttft_seconds", r.ttft_seconds},
                    {"index_seconds", r.index_seconds},
                    {"other_seconds", r.other_seconds}});
  }
  return json;
}

}  // namespace senko::bench
