#include "bench/replay_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/random.h"
#include "bench/measure.h"
#include "runtime/session.h"

namespace senko::bench {
namespace {

std::vector<int32_t> RandomPrompt(const config::ModelConfig& config, int64_t tokens, uint64_t seed) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < tokens; ++i) {
    const uint32_t word = PhiloxDraw(seed, static_cast<uint64_t>(i), 0).word[0];
    ids.push_back(static_cast<int32_t>(word % static_cast<uint32_t>(config.vocab_size)));
  }
  return ids;
}

double TimePrefill(runtime::Executor& executor, cache::SlotPool& slots, std::span<const int32_t> prompt,
                   runtime::DecoderReplay replay) {
  const auto start = std::chrono::steady_clock::now();
  const auto tokens = static_cast<int64_t>(prompt.size());
  runtime::Session session(executor, slots, tokens, replay);
  while (session.size() < tokens) {
    const int64_t count = std::min(executor.max_rows(), tokens - session.size());
    session.Feed(prompt.subspan(static_cast<size_t>(session.size()), static_cast<size_t>(count)));
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::vector<ReplayBenchResult> BenchReplay(runtime::Executor& executor, cache::SlotPool& slots,
                                           std::span<const int64_t> prompt_tokens, int repeats,
                                           const ProgressSink& progress) {
  std::vector<ReplayBenchResult> results;
  uint64_t done = 0;
  for (const int64_t tokens : prompt_tokens) {
    std::vector<double> trims, fulls, ratios;
    for (int repeat = 0; repeat < repeats; ++repeat) {
      const std::vector<int32_t> prompt =
          RandomPrompt(executor.model().config(), tokens, static_cast<uint64_t>(repeat));
      double trim = 0, full = 0;
      for (const bool trims_now : {repeat % 2 == 0, repeat % 2 != 0}) {
        (trims_now ? trim : full) = TimePrefill(
            executor, slots, prompt, trims_now ? runtime::DecoderReplay::kTrim : runtime::DecoderReplay::kFull);
      }
      trims.push_back(trim);
      fulls.push_back(full);
      ratios.push_back(trim / full);
      if (progress) {
        progress({"replay", ++done, prompt_tokens.size() * static_cast<uint64_t>(repeats), "pairs"});
      }
    }
    results.push_back({tokens, Median(trims), Median(fulls), Median(ratios)});
  }
  return results;
}

std::string ToText(const std::vector<ReplayBenchResult>& results) {
  std::string text = fmt::format("{:>8} {:>12} {:>12} {:>8}\n", "prompt", "trim ms", "full ms", "ratio");
  for (const ReplayBenchResult& r : results) {
    text += fmt::format("{:>8} {:>12.1f} {:>12.1f} {:>8.3f}\n", r.prompt_tokens, r.trim_seconds * 1e3,
                        r.full_seconds * 1e3, r.ratio);
  }
  return text;
}

Json ToJson(const std::vector<ReplayBenchResult>& results) {
  Json json = Json::array();
  for (const ReplayBenchResult& r : results) {
    json.push_back({{"prompt_tokens", r.prompt_tokens},
                    {"trim_seconds", r.trim_seconds},
                    {"full_seconds", r.full_seconds},
                    {"ratio", r.ratio}});
  }
  return json;
}

}  // namespace senko::bench
