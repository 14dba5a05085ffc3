#include "bench/cached_prefix.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "bench/measure.h"
#include "bench/random_tokens.h"
#include "runtime/prompt_runner.h"

namespace senko::bench {
namespace {

double IndexSeconds(const runtime::Profile& profile) {
  double seconds = 0;
  for (const char* name : {"index_query", "select"}) {
    const auto found = profile.ops.find(name);
    if (found != profile.ops.end()) seconds += found->second.seconds;
  }
  return seconds;
}

}  // namespace

std::vector<CachedPrefixResult> BenchCachedPrefix(runtime::Executor& executor, cache::SlotPool& slots,
                                                  const CachedPrefixParams& params, runtime::Profile& profile,
                                                  const ProgressSink& progress) {
  const config::ModelConfig& config = executor.model().config();
  std::vector<int64_t> lengths = params.cached_tokens;
  std::sort(lengths.begin(), lengths.end());  // a longer prefix then begins with a shorter one's pages
  engine::SchedulerOptions options;
  options.max_rows = executor.max_rows();
  options.max_model_len = lengths.back() + params.new_tokens + 1;
  runtime::PromptRunner runner(executor, slots, options);
  const std::vector<int32_t> prefix = RandomTokens(config, lengths.back(), 1);
  std::vector<float> logits(static_cast<size_t>(config.vocab_size));
  uint64_t seed = 2, done = 0;
  std::vector<CachedPrefixResult> results;
  for (const int64_t cached : lengths) {
    const std::span<const int32_t> known = std::span(prefix).first(static_cast<size_t>(cached));
    runner.Run(known, {}, "", nullptr);
    CachedPrefixResult result;
    std::vector<double> ttft, index;
    for (int repeat = 0; repeat <= params.repeats; ++repeat) {  // the first one warms up
      std::vector<int32_t> prompt(known.begin(), known.end());
      AppendRandomTokens(config.vocab_size, config.image_token_id, params.new_tokens, seed++,
                         &prompt);  // nobody has cached them
      const uint64_t rows = runner.stats().encoder_rows;
      profile.Clear();
      executor.Wait();
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
      if (progress)
        progress({"cached prefixes", ++done, lengths.size() * static_cast<uint64_t>(params.repeats), "turns"});
    }
    result.ttft_seconds = Median(ttft);
    result.index_seconds = Median(index);
    results.push_back(result);
  }
  return results;
}

CachedPrefixGrowth FitGrowth(std::span<const CachedPrefixResult> results) {
  SENKO_CHECK(results.size() >= 2);
  double mean_x = 0, mean_y = 0;
  for (const CachedPrefixResult& r : results) {
    mean_x += static_cast<double>(r.cached_tokens) / 1024;
    mean_y += r.ttft_seconds;
  }
  mean_x /= static_cast<double>(results.size());
  mean_y /= static_cast<double>(results.size());
  double xy = 0, xx = 0;
  for (const CachedPrefixResult& r : results) {
    const double x = static_cast<double>(r.cached_tokens) / 1024 - mean_x;
    xy += x * (r.ttft_seconds - mean_y);
    xx += x * x;
  }
  const double slope = xx > 0 ? xy / xx : 0;  // one length given twice
  return {mean_y - slope * mean_x, slope};
}

std::string ToText(std::span<const CachedPrefixResult> results) {
  std::string text = fmt::format("{:>8} {:>8} {:>10} {:>10}\n", "cached", "rows run", "TTFT ms", "index ms");
  for (const CachedPrefixResult& r : results) {
    text += fmt::format("{:>8} {:>8} {:>10.2f}", r.cached_tokens, r.rows_run, r.ttft_seconds * 1e3);
    text += r.index_seconds > 0 ? fmt::format(" {:>10.2f}\n", r.index_seconds * 1e3) : fmt::format(" {:>10}\n", "-");
  }
  if (results.size() < 2) return text;
  const CachedPrefixGrowth growth = FitGrowth(results);
  return text + fmt::format("fitted: {:.2f} ms and {:.4f} ms per 1,024 cached tokens\n", growth.seconds_at_none * 1e3,
                            growth.seconds_per_1024 * 1e3);
}

Json ToJson(std::span<const CachedPrefixResult> results) {
  Json rows = Json::array();
  for (const CachedPrefixResult& r : results) {
    Json one = {{"cached_tokens", r.cached_tokens}, {"rows_run", r.rows_run}, {"ttft_seconds", r.ttft_seconds}};
    if (r.index_seconds > 0) one["index_seconds"] = r.index_seconds;
    rows.push_back(std::move(one));
  }
  Json json = {{"results", rows}};
  if (results.size() >= 2) {
    const CachedPrefixGrowth growth = FitGrowth(results);
    json["fit"] = {{"seconds_at_none", growth.seconds_at_none}, {"seconds_per_1024", growth.seconds_per_1024}};
  }
  return json;
}

}  // namespace senko::bench
