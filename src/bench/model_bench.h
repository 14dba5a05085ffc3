// `senko bench decode` and `senko bench prefill`: one sequence of random tokens through a model.
#pragma once

#include <cstdint>
#include <string>

#include "base/json.h"
#include "bench/machine.h"
#include "cache/slot_pool.h"
#include "runtime/executor.h"
#include "runtime/profile.h"

namespace senko::bench {

struct ModelBenchParams {
  int64_t prompt_tokens = 2048;
  int64_t decode_tokens = 32;
  int repeats = 3;
};

struct ModelBenchResult {
  double tokens_per_second = 0;  // median of the repeats
  int64_t tokens = 0;
  double bytes_per_token = 0;    // decode: weights and KV one token must read
  double flops_per_token = 0;    // prefill: multiply-adds of the linears, twice
  double fraction_of_limit = 0;  // decode: of the read bandwidth; prefill: of the FMA peak, whole step
  double linears_fraction = 0;   // prefill: the linears' FLOPs over the time spent in them, of the FMA peak
  runtime::Profile profile;      // of the last repeat
};

// `profile` is the one the executor's model was built with (runtime::ProfiledOps).
ModelBenchResult BenchDecode(runtime::Executor& executor, cache::SlotPool& slots, const ModelBenchParams& params,
                             const Machine& machine, runtime::Profile& profile);
ModelBenchResult BenchPrefill(runtime::Executor& executor, cache::SlotPool& slots, const ModelBenchParams& params,
                              const Machine& machine, runtime::Profile& profile);

std::string ToText(const ModelBenchResult& result, const Machine& machine);
Json ToJson(const ModelBenchResult& result);

}  // namespace senko::bench
