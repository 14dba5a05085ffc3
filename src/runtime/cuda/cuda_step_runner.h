// Runs plans on a GPU without waiting: a step's passes, head and draws are launched while the step before still runs,
// which feeds it on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <optional>
#include <unordered_map>
#include <vector>

#include "runtime/cuda/cuda_executor.h"
#include "runtime/host_step_runner.h"

namespace senko::runtime {

// What the GPU cannot do alone is done as the base class does it, with nothing else in flight: prompts that are scored,
// drafts, and steps with more draws, lists or penalised answers than there is room for.
class CudaStepRunner final : public HostStepRunner {
 public:
  // A step that takes longer than `patience` has failed.
  CudaStepRunner(CudaExecutor& executor, cache::SlotPool& slots, cache::SnapshotStore& snapshots, ThreadPool& pool,
                 int64_t max_drawn_rows, std::chrono::milliseconds patience = std::chrono::seconds(60));
  ~CudaStepRunner() override;

  void Launch(const engine::StepPlan& plan) override;
  size_t most_launched() const override { return kMostLaunched; }
  bool Ready() override;
  StepOutput Collect() override;

  int64_t steps_drawn_here() const { return steps_drawn_here_; }
  int64_t steps_waited_for() const { return steps_waited_for_; }

 private:
  static constexpr size_t kMostLaunched = 2;
  struct Results {  // of a step in flight; pinned
    int32_t* tokens = nullptr;
    ops::SampleResultSm90* draws = nullptr;
    cudaEvent_t begun = nullptr, computed = nullptr, drawn = nullptr, done = nullptr;
  };
  struct Step {
    const engine::StepPlan* plan = nullptr;
    int results = -1;                  // which; -1: nothing is on the GPU
    std::optional<StepOutput> output;  // collected before it was asked for
    std::exception_ptr error;
    bool in_flight() const { return !output && error == nullptr; }
  };
  struct Table {  // DeviceDraws::table
    std::optional<uint64_t> sequence;
    int64_t counted = 0;  // tokens of its answer, once all that is launched has run
    uint64_t step = 0;    // the last that uses it
  };

  void LaunchStep(const engine::StepPlan& plan);
  void RunWaiting(const engine::StepPlan& plan);
  void CollectAll();
  StepOutput Finish(const Step& step);
  void Await(const Step& step);
  SampleDraw DrawOf(const Results& results, size_t draw, const DrawTerms& terms) const;
  [[noreturn]] void Fail(uint64_t step, const std::exception& error);
  void End(uint64_t sequence) override;

  bool NeedsHost(const engine::StepPlan& plan, const std::vector<DrawTerms>& terms) const;
  bool NeedsTokens(const engine::StepPlan& plan, const std::vector<DrawTerms>& terms) const;
  std::vector<DrawTerms> TermsOf(const engine::StepPlan& plan) const;
  StepDraws DrawsOf(const engine::StepPlan& plan, const std::vector<DrawTerms>& terms) const;
  void AddTables(const engine::StepPlan& plan, const std::vector<DrawTerms>& terms, StepDraws* draws);
  size_t TakeTable(uint64_t step);
  void FillTable(size_t index, const DrawTerms& terms);

  CudaExecutor& gpu_;
  const std::chrono::milliseconds patience_;
  Results results_[kMostLaunched];
  int next_results_ = 0;
  std::deque<Step> launched_;
  std::optional<Step> overdue_;  // given up, and perhaps still running
  std::vector<Table> tables_;
  std::unordered_map<uint64_t, size_t> table_of_;
  int64_t steps_drawn_here_ = 0, steps_waited_for_ = 0;
};

}  // namespace senko::runtime
