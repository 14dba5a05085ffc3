// `senko bench mixed`: how long a stream waits for its next token while a long prompt is prefilled beside it, through
// the public engine, for several sizes of step.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/progress.h"
#include "senko/senko.h"

namespace senko::bench {

struct MixedBenchParams {
  std::vector<int64_t> budgets = {512, 2048, 8192};  // rows of a step
  int64_t prompt_tokens = 131072;
  int64_t stream_tokens = 1024;  // the stream's own prompt
  int64_t quiet_tokens = 32;     // of the stream alone, before the prompt comes
};

// Gaps are between the arrivals of two tokens of the stream.
struct MixedBenchResult {
  int64_t budget = 0;
  double quiet_gap_seconds = 0;  // median, nothing beside it
  double gap_seconds = 0;        // median, from the prompt's arrival to its first token
  double longest_gap_seconds = 0;
  int64_t tokens = 0;  // of the stream in that time
  double ttft_seconds = 0;
};

// Loads an engine for each budget, one after the other. `options` says all but the budget, the length and the number of
// sequences. Errors: as LoadEngine; kResourceExhausted when a request fails.
std::vector<MixedBenchResult> BenchMixed(const EngineOptions& options, const MixedBenchParams& params,
                                         const ProgressSink& progress);

std::string ToText(std::span<const MixedBenchResult> results);
Json ToJson(std::span<const MixedBenchResult> results);

}  // namespace senko::bench
