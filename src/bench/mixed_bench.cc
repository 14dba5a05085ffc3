#include "bench/mixed_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "bench/measure.h"
#include "bench/random_tokens.h"

namespace senko::bench {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// When tokens of a request arrived. Written by the engine's thread, read by the one that measures.
class Arrivals final : public OutputSink {
 public:
  void OnScheduled(const RequestUsage&, bool) override {}
  void OnPromptLogprobs(std::vector<TokenOutput>) override {}
  void OnOutput(OutputChunk chunk) override {
    const auto now = Clock::now();
    const std::lock_guard lock(mutex_);
    tokens_.insert(tokens_.end(), chunk.tokens.size(), now);
    if (chunk.finish == FinishReason::kError) error_ = chunk.error.empty() ? "a request failed" : chunk.error;
    finished_ |= chunk.finish.has_value();
  }
  void OnStepDelivered() override {
    const std::lock_guard lock(mutex_);
    delivered_ = Clock::now();
    delivered_tokens_ = tokens_.size();
    ended_ = finished_;
    changed_.notify_all();
  }

  // Until a step has brought the so-manieth token, or, with 0, the end; then when that step had called everyone.
  // Errors: kResourceExhausted with what the engine said when the request failed, or ended before.
  Clock::time_point Wait(size_t tokens) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ || (tokens > 0 && delivered_tokens_ >= tokens); });
    if (!error_.empty()) throw Error(ErrorCode::kResourceExhausted, error_);
    if (delivered_tokens_ < tokens) throw Error(ErrorCode::kResourceExhausted, "a stream ended before the prompt did");
    return delivered_;
  }
  std::vector<Clock::time_point> tokens() const {
    const std::lock_guard lock(mutex_);
    return tokens_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Clock::time_point> tokens_;
  std::string error_;
  bool finished_ = false;
  // As of the end of the last step that called.
  Clock::time_point delivered_;
  size_t delivered_tokens_ = 0;
  bool ended_ = false;
};

GenerationRequest Request(const EngineLimits& limits, int64_t prompt_tokens, uint64_t seed, int64_t max_tokens) {
  GenerationRequest request;
  AppendRandomTokens(limits.vocab_size, limits.image_token, prompt_tokens, seed, &request.prompt);
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  request.sampling.max_tokens = max_tokens;
  return request;
}

MixedBenchResult Measure(Engine& engine, const MixedBenchParams& params, int64_t budget, int64_t stream_length) {
  const auto stream = std::make_shared<Arrivals>(), prompt = std::make_shared<Arrivals>();
  GenerationRequest long_request = Request(engine.limits(), params.prompt_tokens, 2, 1);
  const uint64_t stream_id =
      engine.Submit(Request(engine.limits(), params.stream_tokens, 1, stream_length - params.stream_tokens), stream);
  stream->Wait(static_cast<size_t>(params.quiet_tokens) + 1);
  const auto arrived = Clock::now();
  engine.Submit(std::move(long_request), prompt);
  const auto first_token = prompt->Wait(1);
  engine.Cancel(stream_id);
  stream->Wait(0);

  const std::vector<Clock::time_point> times = stream->tokens();
  std::vector<double> quiet, beside;
  for (size_t i = 1; i < times.size() && times[i] <= first_token; ++i) {
    (times[i] < arrived ? quiet : beside).push_back(Seconds(times[i - 1], times[i]));
  }
  SENKO_CHECK(!quiet.empty() && !beside.empty());
  MixedBenchResult result;
  result.budget = budget;
  result.quiet_gap_seconds = Median(quiet);
  result.gap_seconds = Median(beside);
  result.longest_gap_seconds = *std::max_element(beside.begin(), beside.end());
  result.tokens = static_cast<int64_t>(beside.size());
  result.ttft_seconds = Seconds(arrived, prompt->tokens().front());
  return result;
}

}  // namespace

std::vector<MixedBenchResult> BenchMixed(const EngineOptions& given, const MixedBenchParams& params,
                                         const ProgressSink& progress) {
  std::vector<MixedBenchResult> results;
  for (const int64_t budget : params.budgets) {
    EngineOptions options = given;
    options.max_num_seqs = 2;
    options.max_num_batched_tokens = budget;
    options.long_prefill_token_threshold = budget;  // what the stream leaves of it
    options.enable_prefix_caching = false;
    // The stream outlasts the prompt's steps, however they fall.
    const int64_t steps = 2 * (params.prompt_tokens / (budget - 1)) + params.quiet_tokens + 256;
    const int64_t stream_length = params.stream_tokens + steps;
    options.max_model_len = std::max(params.prompt_tokens + 1, stream_length);
    const auto engine = LoadEngine(options, [&](const std::string& what, uint64_t done, uint64_t total) {
      if (progress) progress({what, done, total, ""});
    });
    results.push_back(Measure(*engine, params, budget, stream_length));
    engine->Shutdown();
    if (progress) progress({"budgets", results.size(), params.budgets.size(), ""});
  }
  return results;
}

std::string ToText(std::span<const MixedBenchResult> results) {
  std::string text = fmt::format("{:>8} {:>12} {:>10} {:>12} {:>8} {:>12}\n", "budget", "quiet gap ms", "gap ms",
                                 "longest ms", "tokens", "prompt ms");
  for (const MixedBenchResult& r : results) {
    text += fmt::format("{:>8} {:>12.2f} {:>10.2f} {:>12.2f} {:>8} {:>12.1f}\n", r.budget, r.quiet_gap_seconds * 1e3,
                        r.gap_seconds * 1e3, r.longest_gap_seconds * 1e3, r.tokens, r.ttft_seconds * 1e3);
  }
  return text;
}

Json ToJson(std::span<const MixedBenchResult> results) {
  Json json = Json::array();
  for (const MixedBenchResult& r : results) {
    json.push_back({{"budget", r.budget},
                    {"quiet_gap_seconds", r.quiet_gap_seconds},
                    {"gap_seconds", r.gap_seconds},
                    {"longest_gap_seconds", r.longest_gap_seconds},
                    {"tokens", r.tokens},
                    {"ttft_seconds", r.ttft_seconds}});
  }
  return json;
}

}  // namespace senko::bench
