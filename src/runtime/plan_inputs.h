// A plan as the model's passes take it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/slot_pool.h"
#include "engine/step_plan.h"
#include "model/step.h"

namespace senko::runtime {

// Holds what the inputs point to until the next Fill. Plans are filled in order, and their tokens come in order.
class PlanInputs {
 public:
  // The plan outlives the inputs' use. `before_in_flight`: the tokens of the plan before are not here yet, and ids that
  // name them stay below zero.
  void Fill(const engine::StepPlan& plan, cache::SlotPool& slots, bool before_in_flight = false);
  // The tokens the plan's samples gave (-1: none), for plans that are fed from them.
  void Drawn(const engine::StepPlan& plan, std::span<const int32_t> tokens);

  std::span<const model::SequenceInput> inputs() const { return inputs_; }
  // Index among the step's kept rows of the span's row at `position`.
  int64_t KeptRow(const engine::StepPlan& plan, int64_t span, int64_t position) const;
  // The span's drafts up to `position`; none before the first.
  std::span<const int32_t> Drafts(const engine::StepPlan& plan, int64_t span, int64_t position) const;

 private:
  std::vector<int32_t> ids_;  // the plan's, with every token known
  std::vector<model::SequenceInput> inputs_;
  std::vector<int64_t> first_kept_;  // per span: its first row among the kept ones
  std::vector<int32_t> last_tokens_;
  uint64_t last_step_ = 0;
};

}  // namespace senko::runtime
