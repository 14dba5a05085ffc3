// `senko bench ttft`: time to the first token of a turn whose beginning is cached, over cached lengths. With bounded
// replay the rows run are the window and the new tokens whatever is cached, so that what grows with it is index
// scoring.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/progress.h"
#include "cache/slot_pool.h"
#include "runtime/executor.h"
#include "runtime/profile.h"

namespace senko::bench {

struct TtftBenchParams {
  std::vector<int64_t> cached_tokens;  // each a multiple of the page above the window
  int64_t new_tokens = 128;
  int repeats = 5;
};

// Seconds are medians over the repeats: from a request's arrival at the scheduler to the logits of its last row.
struct TtftBenchResult {
  int64_t cached_tokens = 0;  // adopted: what usage calls by this name
  int64_t rows_run = 0;       // through the encoder pass: replayed and new ones
  double ttft_seconds = 0;
  double index_seconds = 0;  // of it, in index_query and select
  double other_seconds = 0;  // the rest
};

// `profile` is the one the executor's model was built with (runtime::ProfiledOps). The pages hold the longest turn and
// the token behind it.
std::vector<TtftBenchResult> BenchTtft(runtime::Executor& executor, cache::SlotPool& slots,
                                       const TtftBenchParams& params, runtime::Profile& profile,
                                       const ProgressSink& progress);

std::string ToText(std::span<const TtftBenchResult> results);
Json ToJson(std::span<const TtftBenchResult> results);

}  // namespace senko::bench
