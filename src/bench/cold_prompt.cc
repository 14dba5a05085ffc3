#include "bench/cold_prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "bench/measure.h"
#include "bench/random_tokens.h"

namespace senko::bench {
namespace {

enum Setting : size_t { kFull, kReplay, kGraphs, kSettings };

double MedianRatio(const std::vector<double>& above, const std::vector<double>& below) {
  std::vector<double> ratios;
  for (size_t i = 0; i < above.size(); ++i) ratios.push_back(above[i] / below[i]);
  return Median(std::move(ratios));
}

}  // namespace

double ColdPromptSeconds(runtime::Executor& executor, cache::SlotPool& slots, std::span<const int32_t> prompt,
                         runtime::DecoderReplay replay) {
  std::vector<float> logits(static_cast<size_t>(executor.model().config().vocab_size));
  const auto tokens = static_cast<int64_t>(prompt.size());
  executor.Wait();
  const auto start = std::chrono::steady_clock::now();
  runtime::Session session(executor, slots, tokens, replay);
  int64_t kept = 0;
  while (session.size() < tokens) {
    const int64_t count = std::min(executor.max_rows(), tokens - session.size());
    kept = session.Feed(prompt.subspan(static_cast<size_t>(session.size()), static_cast<size_t>(count)));
  }
  executor.Logits(kept - 1, 1, logits.data(), nullptr);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<ColdPromptResult> BenchColdPrompts(runtime::Executor& executor, cache::SlotPool& slots,
                                               std::span<const int64_t> prompt_tokens, int repeats,
                                               const ProgressSink& progress) {
  const bool graphs = executor.UseGraphs(true);
  const size_t settings = graphs ? kSettings : kGraphs;
  std::vector<ColdPromptResult> results;
  uint64_t seed = 1, done = 0;
  for (const int64_t tokens : prompt_tokens) {
    std::array<std::vector<double>, kSettings> seconds;
    for (int round = 0; round <= repeats; ++round) {
      const std::vector<int32_t> prompt = RandomTokens(executor.model().config(), tokens, seed++);
      for (size_t i = 0; i < settings; ++i) {
        const size_t setting = (i + static_cast<size_t>(round)) % settings;
        executor.UseGraphs(setting == kGraphs);
        const double time = ColdPromptSeconds(
            executor, slots, prompt, setting == kFull ? runtime::DecoderReplay::kFull : runtime::DecoderReplay::kTrim);
        if (round > 0) seconds[setting].push_back(time);
      }
      if (progress) {
        progress({"cold prompts", ++done, prompt_tokens.size() * static_cast<uint64_t>(repeats + 1), "rounds"});
      }
    }
    ColdPromptResult r;
    r.prompt_tokens = tokens;
    r.full_seconds = Median(seconds[kFull]);
    r.replay_seconds = Median(seconds[kReplay]);
    r.replay_over_full = MedianRatio(seconds[kReplay], seconds[kFull]);
    if (graphs) {
      r.graphs_seconds = Median(seconds[kGraphs]);
      r.graphs_over_full = MedianRatio(seconds[kGraphs], seconds[kFull]);
    }
    results.push_back(r);
  }
  executor.UseGraphs(graphs);
  return results;
}

std::string ToText(std::span<const ColdPromptResult> results) {
  std::string text = fmt::format("{:>8} {:>12} {:>12} {:>8} {:>12} {:>8}\n", "prompt", "full ms", "replay ms", "ratio",
                                 "graphs ms", "ratio");
  for (const ColdPromptResult& r : results) {
    text += fmt::format("{:>8} {:>12.2f} {:>12.2f} {:>8.3f}", r.prompt_tokens, r.full_seconds * 1e3,
                        r.replay_seconds * 1e3, r.replay_over_full);
    text += r.graphs_seconds > 0 ? fmt::format(" {:>12.2f} {:>8.3f}\n", r.graphs_seconds * 1e3, r.graphs_over_full)
                                 : fmt::format(" {:>12} {:>8}\n", "-", "-");
  }
  return text;
}

Json ToJson(std::span<const ColdPromptResult> results) {
  Json json = Json::array();
  for (const ColdPromptResult& r : results) {
    Json one = {{"prompt_tokens", r.prompt_tokens},
                {"full_seconds", r.full_seconds},
                {"replay_seconds", r.replay_seconds},
                {"replay_over_full", r.replay_over_full}};
    if (r.graphs_seconds > 0) {
      one["graphs_seconds"] = r.graphs_seconds;
      one["graphs_over_full"] = r.graphs_over_full;
    }
    json.push_back(std::move(one));
  }
  return json;
}

}  // namespace senko::bench
