#include "bench/decode_bench.h"

#include <fmt/format.h>

#include <chrono>

#include "bench/batch.h"
#include "bench/measure.h"
#include "bench/op_totals.h"
#include "bench/step_bytes.h"

namespace senko::bench {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// Steps that touch what prompts do not: weights of the later layers, pages of the sequences' own.
constexpr int64_t kWarmSteps = 2;

}  // namespace

int64_t DecodeTokens(int64_t steps, int64_t rows) { return (kWarmSteps + steps) * rows; }

std::vector<DecodeBenchResult> BenchDecode(runtime::Executor& executor, cache::SlotPool& slots,
                                           const DecodeBenchParams& params, const Machine& machine,
                                           runtime::Profile& profile, const ProgressSink& progress) {
  const model::Model& model = executor.model();
  const config::ModelConfig& config = model.config();
  std::vector<DecodeBenchResult> results;
  std::vector<float> logits;
  for (const int64_t context : params.context) {
    for (const int64_t size : params.batch) {
      Batch batch(executor, slots, size, context);
      const int64_t rows = size * params.rows;
      logits.resize(static_cast<size_t>(rows * config.vocab_size));
      std::vector<double> passes, steps;
      for (int64_t i = -kWarmSteps; i < params.steps; ++i) {
        if (i == 0) profile.Clear();
        const auto begin = Clock::now();
        batch.Step(params.rows);
        executor.Wait();
        const auto passed = Clock::now();
        executor.Logits(0, rows, logits.data(), nullptr);
        const auto end = Clock::now();
        if (i < 0) continue;
        passes.push_back(Seconds(begin, passed));
        steps.push_back(Seconds(begin, end));
      }
      DecodeBenchResult r;
      r.batch = size;
      r.context = context;
      r.rows = params.rows;
      r.pass_seconds = Median(passes);
      r.step_seconds = Median(steps);
      r.tokens_per_second = static_cast<double>(size) / r.step_seconds;
      r.distinct_experts = ExpectedExperts(config.num_experts, config.experts_per_token, rows);
      r.weight_bytes = WeightBytes(model, rows);
      r.kv_bytes = static_cast<double>(size) * KvBytes(config, context + params.rows * params.steps / 2);
      r.fraction_of_limit = (r.weight_bytes + r.kv_bytes) / r.pass_seconds / machine.read_bytes_per_second;
      r.profile = profile;
      results.push_back(std::move(r));
      if (progress) progress({"decode", results.size(), params.context.size() * params.batch.size(), "cases"});
    }
  }
  return results;
}

std::string ToText(std::span<const DecodeBenchResult> results) {
  std::string text;
  for (const DecodeBenchResult& r : results) text += ToText(r.profile);
  text += fmt::format("{:>6} {:>9} {:>5} {:>11} {:>10} {:>10} {:>8} {:>12} {:>8} {:>6}\n", "batch", "context", "rows",
                      "passes ms", "step ms", "tokens/s", "experts", "weights MiB", "KV MiB", "limit");
  for (const DecodeBenchResult& r : results) {
    text +=
        fmt::format("{:>6} {:>9} {:>5} {:>11.3f} {:>10.3f} {:>10.2f} {:>8.1f} {:>12.1f} {:>8.1f} {:>5.1f}%\n", r.batch,
                    r.context, r.rows, r.pass_seconds * 1e3, r.step_seconds * 1e3, r.tokens_per_second,
                    r.distinct_experts, r.weight_bytes / (1 << 20), r.kv_bytes / (1 << 20), 100 * r.fraction_of_limit);
  }
  return text;
}

Json ToJson(std::span<const DecodeBenchResult> results) {
  Json json = Json::array();
  for (const DecodeBenchResult& r : results) {
    Json one = {{"batch", r.batch},
                {"context", r.context},
                {"rows", r.rows},
                {"pass_seconds", r.pass_seconds},
                {"step_seconds", r.step_seconds},
                {"tokens_per_second", r.tokens_per_second},
                {"distinct_experts", r.distinct_experts},
                {"weight_bytes", r.weight_bytes},
                {"kv_bytes", r.kv_bytes},
                {"fraction_of_limit", r.fraction_of_limit}};
    if (!r.profile.ops.empty()) one["ops"] = ToJson(r.profile);
    json.push_back(std::move(one));
  }
  return json;
}

}  // namespace senko::bench
