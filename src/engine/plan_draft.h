// A plan in the making. Internal to the room.
#pragma once

#include "engine/scheduler.h"

namespace senko::engine {

class Scheduler::Draft {
 public:
  StepPlan plan;
  Step step;  // what Advance will need of it
  int64_t rows_left = 0;

  bool Includes(const Sequence& s) const { return s.last_step == plan.step; }
};

}  // namespace senko::engine
