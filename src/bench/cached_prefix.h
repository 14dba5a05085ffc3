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

struct CachedPrefixParams {
  std::vector<int64_t> cached_tokens;  // each a multiple of the page above the window
  int64_t new_tokens = 512;
  int repeats = 5;
};

// Seconds are medians over the repeats: from a request's arrival at the scheduler, as token ids, to the logits of its
// last row.
struct CachedPrefixResult {
  int64_t cached_tokens = 0;  // adopted: what usage calls by this name
  int64_t rows_run = 0;       // through the encoder pass: replayed and new ones
  double ttft_seconds = 0;
  double index_seconds = 0;  // of it, in index_query and select; CPU only
};

// The line through the results with the least squared error.
struct CachedPrefixGrowth {
  double seconds_at_none = 0;
  double seconds_per_1024 = 0;  // more cached tokens
};

// `profile` is the one the executor's model was built with (runtime::ProfiledOps). The pages hold the longest turn and
// the token behind it.
std::vector<CachedPrefixResult> BenchCachedPrefix(runtime::Executor& executor, cache::SlotPool& slots,
                                                  const CachedPrefixParams& params, runtime::Profile& profile,
                                                  const ProgressSink& progress);

// Of at least two lengths.
CachedPrefixGrowth FitGrowth(std::span<const CachedPrefixResult> results);

std::string ToText(std::span<const CachedPrefixResult> results);
Json ToJson(std::span<const CachedPrefixResult> results);

}  // namespace senko::bench
