// `senko bench replay`: what running a prompt's last window only through the later layers saves, in pairs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/progress.h"
#include "cache/slot_pool.h"
#include "runtime/executor.h"

namespace senko::bench {

// Medians over the repeats; a pair runs one after the other, who goes first alternates.
struct ReplayBenchResult {
  int64_t prompt_tokens = 0;
  double trim_seconds = 0;
  double full_seconds = 0;
  double ratio = 0;  // median of the pairs' trim / full
};

std::vector<ReplayBenchResult> BenchReplay(runtime::Executor& executor, cache::SlotPool& slots,
                                           std::span<const int64_t> prompt_tokens, int repeats,
                                           const ProgressSink& progress);

std::string ToText(const std::vector<ReplayBenchResult>& results);
Json ToJson(const std::vector<ReplayBenchResult>& results);

}  // namespace senko::bench
