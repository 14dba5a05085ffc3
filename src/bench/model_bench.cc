#include "bench/model_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/random.h"
#include "bench/measure.h"
#include "runtime/session.h"

namespace senko::bench {
namespace {

using Clock = std::chrono::steady_clock;

double Since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Random ids that are no image tokens.
std::vector<int32_t> RandomTokens(const config::ModelConfig& config, int64_t count, uint64_t seed) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    int64_t id = PhiloxDraw(seed, static_cast<uint64_t>(i), 0).word[0] % config.vocab_size;
    if (id == config.image_token_id) id = 0;
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

// All of the prompt, in steps of the executor's size. Returns kept rows of the last step.
int64_t Prefill(runtime::Executor& executor, runtime::Session& session, const std::vector<int32_t>& prompt) {
  int64_t kept = 0;
  const std::span<const int32_t> all(prompt);
  for (size_t at = 0; at < prompt.size();) {
    const size_t count = std::min(static_cast<size_t>(executor.max_rows()), prompt.size() - at);
    kept = session.Feed(all.subspan(at, count));
    at += count;
  }
  return kept;
}

// Entries and keys a token at `position` reads, and every layer's window.
double KvBytesRead(const config::ModelConfig& config, int64_t position) {
  const double window = static_cast<double>(std::min(position + 1, config.window)) *
                        static_cast<double>(config.head_dim + config.head_dim / 32) *
                        static_cast<double>(config.num_layers);
  double bytes = window;
  for (const auto& plan : config::MakeLayerSchedule(config)) {
    if (plan.ratio == 0) continue;
    const int64_t entries = (position + 1) / plan.ratio;
    bytes += static_cast<double>(std::min(entries, config.index_topk)) *
             static_cast<double>(config.head_dim / 2 + config.head_dim / 16);
    if (plan.indexes && entries > config.index_topk) {
      const int64_t scored = plan.restricted_to_candidates
                                 ? std::min(entries, config.candidate_blocks * config.candidate_block_size)
                                 : entries;
      bytes += static_cast<double>(scored) * static_cast<double>(config.index_dim / 2 + config.index_dim / 32);
    }
  }
  return bytes;
}

bool IsLinear(const std::string& op) {
  return op == "linear" || op == "experts" || op == "output_proj" || op == "router" || op == "mhc_mix" ||
         op == "logits";
}

}  // namespace

ModelBenchResult BenchDecode(runtime::Executor& executor, cache::SlotPool& slots, const ModelBenchParams& params,
                             const Machine& machine, runtime::Profile& profile) {
  const config::ModelConfig& config = executor.model().config();
  const std::vector<int32_t> prompt = RandomTokens(config, params.prompt_tokens, 1);
  const std::vector<int32_t> next = RandomTokens(config, params.decode_tokens + 1, 2);
  std::vector<float> logits(static_cast<size_t>(config.vocab_size));
  ModelBenchResult result;
  std::vector<double> rates;
  for (int repeat = 0; repeat < params.repeats; ++repeat) {
    runtime::Session session(executor, slots, params.prompt_tokens, runtime::DecoderReplay::kTrim);
    Prefill(executor, session, prompt);
    session.Feed({&next[0], 1});  // warms weights that only decode touches
    profile.Clear();
    const auto start = Clock::now();
    for (int64_t i = 1; i <= params.decode_tokens; ++i) {
      const int64_t kept = session.Feed({&next[static_cast<size_t>(i)], 1});
      executor.Logits(kept - 1, 1, logits.data(), nullptr);
    }
    rates.push_back(static_cast<double>(params.decode_tokens) / Since(start));
  }
  result.profile = profile;
  result.tokens = params.decode_tokens;
  result.tokens_per_second = Median(rates);
  result.bytes_per_token = static_cast<double>(executor.model().weights().ActiveBytes(config.experts_per_token)) +
                           KvBytesRead(config, params.prompt_tokens + params.decode_tokens / 2);
  result.fraction_of_limit = result.bytes_per_token * result.tokens_per_second / machine.read_bytes_per_second;
  return result;
}

ModelBenchResult BenchPrefill(runtime::Executor& executor, cache::SlotPool& slots, const ModelBenchParams& params,
                              const Machine& machine, runtime::Profile& profile) {
  const config::ModelConfig& config = executor.model().config();
  const std::vector<int32_t> prompt = RandomTokens(config, params.prompt_tokens, 1);
  std::vector<float> logits(static_cast<size_t>(config.vocab_size));
  ModelBenchResult result;
  std::vector<double> rates;
  for (int repeat = 0; repeat < params.repeats; ++repeat) {
    runtime::Session session(executor, slots, params.prompt_tokens, runtime::DecoderReplay::kTrim);
    profile.Clear();
    const auto start = Clock::now();
    const int64_t kept = Prefill(executor, session, prompt);
    executor.Logits(kept - 1, 1, logits.data(), nullptr);
    rates.push_back(static_cast<double>(params.prompt_tokens) / Since(start));
  }
  result.profile = profile;
  result.tokens = params.prompt_tokens;
  result.tokens_per_second = Median(rates);
  double flops = 0, seconds = 0;
  for (const auto& [name, op] : profile.ops) {
    if (!IsLinear(name)) continue;
    flops += op.flops;
    seconds += op.seconds;
  }
  result.flops_per_token = flops / static_cast<double>(params.prompt_tokens);
  result.linears_fraction = flops / seconds / machine.fma_flops_per_second;
  result.fraction_of_limit = result.flops_per_token * result.tokens_per_second / machine.fma_flops_per_second;
  return result;
}

std::string ToText(const ModelBenchResult& r, const Machine& machine) {
  double total = 0;
  for (const auto& entry : r.profile.ops) total += entry.second.seconds;
  std::vector<std::pair<std::string, runtime::OpTotals>> ops(r.profile.ops.begin(), r.profile.ops.end());
  std::sort(ops.begin(), ops.end(), [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  std::string text =
      fmt::format("{:<18} {:>7} {:>10} {:>6} {:>9} {:>9}\n", "operator", "calls", "ms", "share", "GFLOP/s", "GB/s");
  for (const auto& [name, op] : ops) {
    text += fmt::format("{:<18} {:>7} {:>10.2f} {:>5.1f}% {:>9.1f} {:>9.2f}\n", name, op.calls, op.seconds * 1e3,
                        100 * op.seconds / total, op.flops / op.seconds / 1e9, op.bytes / op.seconds / 1e9);
  }
  text += fmt::format("{} tokens, {:.2f} tokens/s", r.tokens, r.tokens_per_second);
  if (r.bytes_per_token > 0) {
    text += fmt::format("; {:.1f} MiB read per token, {:.2f} of {:.2f} GB/s: {:.0f}% of the limit\n",
                        r.bytes_per_token / (1 << 20), r.bytes_per_token * r.tokens_per_second / 1e9,
                        machine.read_bytes_per_second / 1e9, 100 * r.fraction_of_limit);
  } else {
    text += fmt::format(
        "; {:.2f} GFLOP per token in linears, which run at {:.0f}% of the FMA peak (the whole step at "
        "{:.0f}%)\n",
        r.flops_per_token / 1e9, 100 * r.linears_fraction, 100 * r.fraction_of_limit);
  }
  return text;
}

Json ToJson(const ModelBenchResult& r) {
  Json ops = Json::object();
  for (const auto& [name, op] : r.profile.ops) {
    ops[name] = {{"calls", op.calls}, {"seconds", op.seconds}, {"flops", op.flops}, {"bytes", op.bytes}};
  }
  Json json = {{"tokens", r.tokens},
               {"tokens_per_second", r.tokens_per_second},
               {"fraction_of_limit", r.fraction_of_limit},
               {"ops", ops}};
  if (r.bytes_per_token > 0) json["bytes_per_token"] = r.bytes_per_token;
  if (r.flops_per_token > 0) {
    json["flops_per_token"] = r.flops_per_token;
    json["linears_fraction_of_limit"] = r.linears_fraction;
  }
  return json;
}

}  // namespace senko::bench
