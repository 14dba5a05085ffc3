// `senko bench decode`: steps of B sequences that share one prompt's pages, a row (or some rows to verify) of each.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/progress.h"
#include "bench/machine.h"
#include "cache/slot_pool.h"
#include "runtime/executor.h"
#include "runtime/profile.h"

namespace senko::bench {

struct DecodeBenchParams {
  std::vector<int64_t> batch = {1};       // sequences
  std::vector<int64_t> context = {2048};  // tokens of each, whole pages
  int64_t rows = 1;                       // of each in a step
  int64_t steps = 32;
};

// Seconds are medians over the steps.
struct DecodeBenchResult {
  int64_t batch = 0;
  int64_t context = 0;
  int64_t rows = 0;
  double pass_seconds = 0;       // the two passes
  double step_seconds = 0;       // and the logits of every row, brought to the host
  double tokens_per_second = 0;  // one token a sequence and step: the least that rows to verify yield
  double distinct_experts = 0;   // of a layer, expected
  double weight_bytes = 0;       // that the passes must read, with so many experts
  double kv_bytes = 0;           // that a row of each sequence must read
  double fraction_of_limit = 0;  // their sum over pass_seconds, of the machine's read bandwidth
  runtime::Profile profile;      // of all steps; empty on a GPU
};

// Tokens that `steps` steps of `rows` rows, and those before that are not counted, add to each sequence.
int64_t DecodeTokens(int64_t steps, int64_t rows);

// Every context with every batch. `profile` is the one the executor's model was built with (runtime::ProfiledOps).
// Errors: kResourceExhausted when pages or slots are missing.
std::vector<DecodeBenchResult> BenchDecode(runtime::Executor& executor, cache::SlotPool& slots,
                                           const DecodeBenchParams& params, const Machine& machine,
                                           runtime::Profile& profile, const ProgressSink& progress);

std::string ToText(std::span<const DecodeBenchResult> results);
Json ToJson(std::span<const DecodeBenchResult> results);

}  // namespace senko::bench
