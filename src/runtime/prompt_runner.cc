#include "runtime/prompt_runner.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/error.h"

namespace senko::runtime {
namespace {

engine::SchedulerOptions OneStep(engine::SchedulerOptions options) {
  options.steps_in_flight = 1;
  return options;
}

}  // namespace

PromptRunner::PromptRunner(Executor& executor, cache::SlotPool& slots, engine::SchedulerOptions options)
    : executor_(executor),
      slots_(slots),
      snapshots_(slots.layout(), 0),
      scheduler_(executor.model().config(), OneStep(std::move(options)), executor.pages(), slots, snapshots_) {}

int64_t PromptRunner::Run(std::span<const int32_t> prompt, std::span<const int64_t> pieces, const std::string& salt,
                          const OnStep& on_step) {
  const int64_t vocab = executor_.model().config().vocab_size;
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] < 0 || prompt[i] >= vocab) {
      throw Error(ErrorCode::kInvalidArgument, "token id " + std::to_string(prompt[i]) + " at position " +
                                                   std::to_string(i) + " is outside the vocabulary of " +
                                                   std::to_string(vocab));
    }
  }
  engine::Request request;
  request.id = next_request_++;
  request.prompt.ids.assign(prompt.begin(), prompt.end());
  request.cache_salt = salt;
  request.max_tokens = 1;
  scheduler_.Add(std::move(request));
  int64_t hit = 0;
  size_t piece = 0;
  while (!scheduler_.idle()) {
    const int64_t rows = pieces.empty() ? INT64_MAX : pieces[std::min(piece++, pieces.size() - 1)];
    const auto plan = scheduler_.Plan(rows);
    SENKO_CHECK(plan);
    engine::StepResult result;
    result.step = plan->step;
    if (!plan->spans.empty()) {
      inputs_.Fill(*plan, slots_);
      executor_.Run(inputs_.inputs());
      if (on_step) on_step(executor_.kept_positions());
    }
    result.tokens.assign(plan->samples.size(), 0);  // the one token is nobody's
    inputs_.Drawn(*plan, result.tokens);
    scheduler_.Advance(result);
    for (const engine::Event& event : scheduler_.TakeEvents()) {
      if (event.kind == engine::Event::Kind::kScheduled) hit = event.cached_tokens;
    }
  }
  return hit;
}

}  // namespace senko::runtime
