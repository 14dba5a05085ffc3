#include "runtime/plan_inputs.h"

#include <algorithm>

#include "base/check.h"

namespace senko::runtime {

void PlanInputs::Fill(const engine::StepPlan& plan, cache::SlotPool& slots, bool before_in_flight) {
  ids_.assign(plan.ids.begin(), plan.ids.end());
  for (int32_t& id : ids_) {
    if (id >= 0 || before_in_flight) continue;
    SENKO_CHECK(last_step_ + 1 == plan.step);
    // A row that could not be drawn from ends its sequence; what runs ahead for it only has to run.
    id = std::max(last_tokens_.at(static_cast<size_t>(-1 - id)), 0);
  }
  inputs_.clear();
  first_kept_.clear();
  int64_t kept = 0;
  for (const engine::PlannedSpan& span : plan.spans) {
    model::SequenceInput input;
    input.tokens = ids_.data() + span.first_id;
    input.tokens_begin = span.ids_begin;
    input.begin = span.begin;
    input.end = span.end;
    input.pages = plan.pages.data() + span.first_page;
    input.slot = slots.data(span.slot);
    input.replay_start = span.replay_start;
    input.write_floor = span.write_floor;
    input.keep_begin = span.keep_begin;
    input.tail_start = span.tail_start;
    inputs_.push_back(input);
    first_kept_.push_back(kept);
    kept += span.kept_rows();
  }
}

void PlanInputs::Drawn(const engine::StepPlan& plan, std::span<const int32_t> tokens) {
  if (plan.step < last_step_) return;  // given up, and told again behind a later one
  last_tokens_.assign(tokens.begin(), tokens.end());
  last_step_ = plan.step;
}

int64_t PlanInputs::KeptRow(const engine::StepPlan& plan, int64_t span, int64_t position) const {
  const engine::PlannedSpan& s = plan.spans[static_cast<size_t>(span)];
  const int64_t row = position - (s.end - s.kept_rows());
  SENKO_CHECK(row >= 0 && position < s.end);
  return first_kept_[static_cast<size_t>(span)] + row;
}

std::span<const int32_t> PlanInputs::Drafts(const engine::StepPlan& plan, int64_t span, int64_t position) const {
  const engine::PlannedSpan& s = plan.spans[static_cast<size_t>(span)];
  const int64_t first = s.end - s.drafts;
  if (position < first) return {};
  SENKO_CHECK(position < s.end);
  return std::span(ids_).subspan(static_cast<size_t>(s.first_id + first - s.ids_begin),
                                 static_cast<size_t>(position + 1 - first));
}

}  // namespace senko::runtime
