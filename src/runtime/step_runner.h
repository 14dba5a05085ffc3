// Runs plans on the CPU: copies, the two passes, logits, draws.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/thread_pool.h"
#include "cache/page_pool.h"
#include "cache/slot_pool.h"
#include "cache/snapshot_store.h"
#include "engine/step_plan.h"
#include "runtime/executor.h"
#include "runtime/plan_inputs.h"
#include "runtime/sampler.h"
#include "tensor/buffer.h"

namespace senko::runtime {

// Scores of prompt tokens: entry i is of the token at position first + i.
struct PromptScores {
  uint64_t sequence = 0;
  int64_t first = 0;
  std::vector<TokenOutput> tokens;
  bool failed = false;  // a row was not finite
};

struct StepOutput {
  engine::StepResult result;
  std::vector<SampleDraw> draws;  // per sample of the plan
  std::vector<PromptScores> prompts;
  double model_seconds = 0;  // passes and head
  double sampler_seconds = 0;
};

// One plan at a time, in order, from one thread. Everything it is given outlives it.
class StepRunner {
 public:
  // `max_drawn_rows`: the most rows that a step draws from.
  StepRunner(Executor& executor, cache::SlotPool& slots, cache::SnapshotStore& snapshots, ThreadPool& pool,
             int64_t max_drawn_rows);

  // Before the first plan that names the sequence.
  void Begin(uint64_t sequence, std::shared_ptr<const GenerationRequest> request);

  // Errors: whatever a pass throws; the plan's sequences are then in an unknown state, all others are untouched.
  StepOutput Run(const engine::StepPlan& plan);

  // Stands in for the output of a plan whose Run threw: every draw failed.
  StepOutput Abandon(const engine::StepPlan& plan);

  int64_t bytes() const { return static_cast<int64_t>(logits_.bytes()); }

 private:
  void ScorePrompts(const engine::StepPlan& plan, StepOutput* output);
  void Draw(const engine::StepPlan& plan, StepOutput* output);
  void End(const engine::StepPlan& plan);
  // `from` and `to`: where copy.from and copy.to lie, `bytes` each.
  template <typename From, typename To>
  void CopyAll(const std::vector<engine::Copy>& copies, size_t bytes, const From& from, const To& to);

  Executor& executor_;
  cache::SlotPool& slots_;
  cache::SnapshotStore& snapshots_;
  Sampler sampler_;
  ThreadPool& pool_;
  std::unordered_map<uint64_t, std::shared_ptr<const GenerationRequest>>
      scored_;            // sequences that want their prompt's scores
  Buffer<float> logits_;  // [max_drawn_rows, vocab]: of the rows drawn from, or a block of a prompt's
  int64_t max_drawn_rows_;
  PlanInputs inputs_;
};

}  // namespace senko::runtime
