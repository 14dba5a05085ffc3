// Whole prompts through the scheduler's own planning, one at a time, with every kept row in view: `senko logits` and
// `senko eval replay`.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "cache/page_pool.h"
#include "cache/slot_pool.h"
#include "cache/snapshot_store.h"
#include "engine/scheduler.h"
#include "runtime/executor.h"
#include "runtime/plan_inputs.h"

namespace senko::runtime {

// Everything it is given outlives it. Pages of earlier prompts are hits for later ones, where the options allow.
class PromptRunner {
 public:
  // options.max_rows and .max_model_len are the caller's; steps_in_flight is 1.
  PromptRunner(Executor& executor, cache::SlotPool& slots, engine::SchedulerOptions options);

  // Called after every step with the positions of its kept rows, while the executor still has their logits.
  using OnStep = std::function<void(std::span<const int64_t> positions)>;

  // Runs the prompt in steps of pieces[0], pieces[1], ... rows, the last repeated; empty: as large as can be. `salt`
  // keeps prompts apart that must not meet. Returns the hit. Errors: as Scheduler::Add; kInvalidArgument for a token
  // outside the vocabulary.
  int64_t Run(std::span<const int32_t> prompt, std::span<const int64_t> pieces, const std::string& salt,
              const OnStep& on_step);

  const engine::SchedulerStats& stats() const { return scheduler_.stats(); }

 private:
  Executor& executor_;
  cache::SlotPool& slots_;
  cache::SnapshotStore snapshots_;
  engine::Scheduler scheduler_;
  PlanInputs inputs_;
  uint64_t next_request_ = 1;
};

}  // namespace senko::runtime
