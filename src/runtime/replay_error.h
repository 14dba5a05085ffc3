// How much bounded replay changes what the model says: exact logits against approximate ones on the same text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/progress.h"
#include "cache/slot_pool.h"
#include "runtime/executor.h"

namespace senko::runtime {

// Over the rows from the prompt's last on, each fed the text's own token.
struct ReplayError {
  std::string mode;  // "trim", "halo", "hit 128", "hit 128 + trim"
  int64_t hit = 0;
  int64_t rows = 0;
  int64_t flips = 0;   // rows whose likeliest token differs
  double mean_kl = 0;  // KL(exact || approximate), nats
  double largest_kl = 0;
  double largest_logit = 0;  // difference of a logit, in units of the row's root mean square
};

// The first `prompt_tokens` of `text` are the prompt, the rest is fed token by token. `hits`: cached lengths to try,
// each a whole number of pages above the window and below the prompt. Needs two slots and pages for twice the text.
// Errors: kInvalidArgument naming a hit that is none.
std::vector<ReplayError> MeasureReplay(Executor& executor, cache::SlotPool& slots, std::span<const int32_t> text,
                                       int64_t prompt_tokens, std::span<const int64_t> hits,
                                       const ProgressSink& progress);

}  // namespace senko::runtime
