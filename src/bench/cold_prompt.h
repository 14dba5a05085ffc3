// `senko bench ttft`: time to the first token of a prompt of which nothing is cached, with and without decoder replay.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/progress.h"
#include "cache/slot_pool.h"
#include "runtime/executor.h"
#include "runtime/session.h"

namespace senko::bench {

// From the first token fed, in steps as large as the executor's, to the logits of the last row.
double ColdPromptSeconds(runtime::Executor& executor, cache::SlotPool& slots, std::span<const int32_t> prompt,
                         runtime::DecoderReplay replay);

// Seconds are medians over the rounds, ratios medians of the rounds' ratios. Where there are no graphs, `graphs` is 0.
struct ColdPromptResult {
  int64_t prompt_tokens = 0;
  double full_seconds = 0;    // every row in every layer, kernel by kernel
  double replay_seconds = 0;  // the later layers only for the last window, kernel by kernel
  double graphs_seconds = 0;  // the same, launched as graphs
  double replay_over_full = 0;
  double graphs_over_full = 0;
};

// A round is a new prompt in every setting, one after the other; who goes first changes from round to round. The first
// round of a length is not counted. Leaves graphs as they were asked for when it began with them.
std::vector<ColdPromptResult> BenchColdPrompts(runtime::Executor& executor, cache::SlotPool& slots,
                                               std::span<const int64_t> prompt_tokens, int repeats,
                                               const ProgressSink& progress);

std::string ToText(std::span<const ColdPromptResult> results);
Json ToJson(std::span<const ColdPromptResult> results);

}  // namespace senko::bench
