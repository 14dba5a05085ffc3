#include "bench/prefill_bench.h"

#include <fmt/format.h>

#include <chrono>
#include <vector>

#include "bench/cold_prompt.h"
#include "bench/measure.h"
#include "bench/op_totals.h"
#include "bench/random_tokens.h"

namespace senko::bench {
namespace {

bool IsLinear(const std::string& op) {
  return op == "linear" || op == "experts" || op == "output_proj" || op == "router" || op == "mhc_mix" ||
         op == "logits";
}

}  // namespace

PrefillBenchResult BenchPrefill(runtime::Executor& executor, cache::SlotPool& slots, const PrefillBenchParams& params,
                                const Machine& machine, runtime::Profile& profile) {
  const std::vector<int32_t> prompt = RandomTokens(executor.model().config(), params.prompt_tokens, 1);
  PrefillBenchResult result;
  std::vector<double> rates;
  for (int repeat = 0; repeat < params.repeats; ++repeat) {
    profile.Clear();
    rates.push_back(static_cast<double>(params.prompt_tokens) /
                    ColdPromptSeconds(executor, slots, prompt, runtime::DecoderReplay::kTrim));
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

std::string ToText(const PrefillBenchResult& r) {
  return ToText(r.profile) +
         fmt::format(
             "{} tokens, {:.2f} tokens/s; {:.2f} GFLOP per token in linears, which run at {:.0f}% of the FMA peak (the "
             "whole step at {:.0f}%)\n",
             r.tokens, r.tokens_per_second, r.flops_per_token / 1e9, 100 * r.linears_fraction,
             100 * r.fraction_of_limit);
}

Json ToJson(const PrefillBenchResult& r) {
  return {{"tokens", r.tokens},
          {"tokens_per_second", r.tokens_per_second},
          {"flops_per_token", r.flops_per_token},
          {"linears_fraction_of_limit", r.linears_fraction},
          {"fraction_of_limit", r.fraction_of_limit},
          {"ops", ToJson(r.profile)}};
}

}  // namespace senko::bench
