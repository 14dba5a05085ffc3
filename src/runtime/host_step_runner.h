// Runs plans one after the other, each within its Launch, and draws on the CPU wherever the passes run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/thread_pool.h"
#include "cache/page_pool.h"
#include "cache/slot_pool.h"
#include "cache/snapshot_store.h"
#include "runtime/executor.h"
#include "runtime/plan_inputs.h"
#include "runtime/step_runner.h"
#include "tensor/buffer.h"

namespace senko::runtime {

class HostStepRunner : public StepRunner {
 public:
  // `max_drawn_rows`: the most rows that a step draws from.
  HostStepRunner(Executor& executor, cache::SlotPool& slots, cache::SnapshotStore& snapshots, ThreadPool& pool,
                 int64_t max_drawn_rows);

  void Begin(uint64_t sequence, std::shared_ptr<const GenerationRequest> request) override;
  void Launch(const engine::StepPlan& plan) override;
  size_t most_launched() const override { return 1; }
  bool Ready() override { return true; }
  StepOutput Collect() override;
  StepOutput Abandon(const engine::StepPlan& plan) override;
  int64_t bytes() const override { return static_cast<int64_t>(logits_.bytes()); }

 protected:
  // A whole step, waited for; no other is in flight.
  StepOutput Run(const engine::StepPlan& plan);
  void CopyBefore(const engine::StepPlan& plan);
  void CopyBehind(const engine::StepPlan& plan);
  // Kept rows that the plan's samples draw from; distinct and ascending in `distinct`. `inputs_` holds the plan.
  std::vector<int64_t> RowsOfSamples(const engine::StepPlan& plan, std::vector<int64_t>* distinct) const;
  bool WantsPromptScores(const engine::PlannedSpan& span) const {
    return span.prompt_logits && scored_.contains(span.sequence);
  }
  virtual void End(uint64_t sequence);
  void EndAll(const engine::StepPlan& plan) {
    for (const uint64_t sequence : plan.ended) End(sequence);
  }

  Executor& executor_;
  cache::SlotPool& slots_;
  Sampler sampler_;
  PlanInputs inputs_;
  const int64_t max_drawn_rows_;

 private:
  void ScorePrompts(const engine::StepPlan& plan, StepOutput* output);
  void Draw(const engine::StepPlan& plan, StepOutput* output);
  // `from` and `to`: where copy.from and copy.to lie, `bytes` each.
  template <typename From, typename To>
  void CopyAll(const std::vector<engine::Copy>& copies, size_t bytes, const From& from, const To& to);

  cache::SnapshotStore& snapshots_;
  ThreadPool& pool_;
  std::unordered_map<uint64_t, std::shared_ptr<const GenerationRequest>>
      scored_;                        // sequences that want their prompt's scores
  Buffer<float> logits_;              // [max_drawn_rows, vocab]: of the rows drawn from, or a block of a prompt's
  std::optional<StepOutput> output_;  // of the launched step
};

// A draw's place in StepResult::tokens.
int32_t ResultToken(const SampleDraw& draw);

}  // namespace senko::runtime
