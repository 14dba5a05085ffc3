// `senko bench prefill`: one prompt of random tokens through a model on the CPU, with a table of operators.
#pragma once

#include <cstdint>
#include <string>

#include "base/json.h"
#include "bench/machine.h"
#include "cache/slot_pool.h"
#include "runtime/executor.h"
#include "runtime/profile.h"

namespace senko::bench {

struct PrefillBenchParams {
  int64_t prompt_tokens = 2048;
  int repeats = 3;
};

struct PrefillBenchResult {
  int64_t tokens = 0;
  double tokens_per_second = 0;  // median of the repeats
  double flops_per_token = 0;    // multiply-adds of the linears, twice
  double linears_fraction = 0;   // their FLOPs over the time spent in them, of the FMA peak
  double fraction_of_limit = 0;  // of the FMA peak, whole step
  runtime::Profile profile;      // of the last repeat
};

// `profile` is the one the executor's model was built with (runtime::ProfiledOps).
PrefillBenchResult BenchPrefill(runtime::Executor& executor, cache::SlotPool& slots, const PrefillBenchParams& params,
                                const Machine& machine, runtime::Profile& profile);

std::string ToText(const PrefillBenchResult& result);
Json ToJson(const PrefillBenchResult& result);

}  // namespace senko::bench
