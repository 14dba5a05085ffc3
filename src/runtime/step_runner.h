// Runs plans: copies, the two passes, logits, draws. A step is launched, and collected when its result is wanted.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "engine/step_plan.h"
#include "runtime/sampler.h"
#include "senko/senko.h"

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
  double model_seconds = 0;    // passes and head; of a GPU's own time where that draws: the passes
  double sampler_seconds = 0;  // draws; there: head and draws
};

// What steps run on is lost, and all that lies on it: no step can be launched or collected any more.
struct DeviceLost : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Plans in order, from one thread. Everything it is given outlives it.
class StepRunner {
 public:
  virtual ~StepRunner() = default;

  // Before the first plan that names the sequence.
  virtual void Begin(uint64_t sequence, std::shared_ptr<const GenerationRequest> request) = 0;

  // The plan outlives its Collect, or its Abandon. Errors: whatever a pass throws; the plan's sequences are then in an
  // unknown state, all others are untouched. Once all launched before it are collected, Abandon stands in for it; until
  // then nothing is launched. DeviceLost ends it all.
  virtual void Launch(const engine::StepPlan& plan) = 0;

  // Steps that may be launched before the first of them is collected: at least 1.
  virtual size_t most_launched() const = 0;
  // The oldest launched step has ended: Collect would not wait.
  virtual bool Ready() = 0;
  // Waits for the oldest launched step. Errors: as Launch; the step is no longer among the launched, and Abandon stands
  // in for it.
  virtual StepOutput Collect() = 0;

  // Stands in for the output of a plan whose Launch or Collect threw: every draw failed.
  virtual StepOutput Abandon(const engine::StepPlan& plan) = 0;

  // Of host memory.
  virtual int64_t bytes() const = 0;
};

}  // namespace senko::runtime
