// The engine behind the public header: one thread that plans, one that launches steps and collects them.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cache/page_pool.h"
#include "cache/slot_pool.h"
#include "cache/snapshot_store.h"
#include "engine/scheduler.h"
#include "runtime/backend.h"
#include "runtime/load.h"
#include "runtime/memory_plan.h"
#include "runtime/step_runner.h"
#include "senko/senko.h"

namespace senko::runtime {

class EngineCore final : public Engine {
 public:
  // `options` have no 0 that means "choose" but for the memory's, which `memory` has decided. Errors: as LoadEngine.
  EngineCore(const EngineOptions& options, LoadedModel loaded, std::unique_ptr<ThreadPool> pool,
             std::unique_ptr<Backend> backend, const MemoryPlan& memory);
  ~EngineCore() override;

  static ExecutorLimits StepLimits(const EngineOptions& options, const model::Model& model);
  // Of window snapshots, beside slots of so many bytes.
  static int64_t SnapshotBytes(const EngineOptions& options, int64_t slot_bytes);

  uint64_t Submit(GenerationRequest request, std::shared_ptr<OutputSink> sink) override;
  void Stop(uint64_t request, int choice) override;
  void Cancel(uint64_t request) override;
  void Shutdown() override;
  const EngineLimits& limits() const override { return limits_; }
  EngineStats stats() const override;

 private:
  struct Running {  // a request, on the engine's thread
    uint64_t id = 0;
    std::shared_ptr<const GenerationRequest> request;
    std::shared_ptr<OutputSink> sink;
    int open_choices = 0;
    bool waits = true;  // counted in waiting_
    std::vector<TokenOutput> prompt_scores;
    int64_t prompt_scored = 0;
    bool prompt_told = false;  // a residency later, or a cut at the prompt's last row, scores nothing new
  };
  struct Command {
    enum class Kind { kSubmit, kStop, kCancel } kind = Kind::kSubmit;
    uint64_t request = 0;
    int choice = 0;
    Running submit;
  };
  struct Job {  // for the thread that runs steps
    engine::StepPlan plan;
    std::vector<std::pair<uint64_t, std::shared_ptr<const GenerationRequest>>> begins;
  };
  struct Launched {  // on that thread, in order
    Job job;
    std::string error;  // of its launch; nothing is launched behind one with it
    double compute_cpu_seconds = 0;
  };
  struct Done {
    StepOutput output;
    std::vector<uint64_t> samples;  // sequence of each draw
    std::vector<uint64_t> failed;   // sequences of a step that threw
    std::string error;
    double compute_cpu_seconds = 0;  // of this step
  };

  Done Finish(const Launched& step);
  void Check(const GenerationRequest& request) const;
  void PlanLoop();
  void RunLoop();
  bool TakeJob(size_t launched, Job* job);
  double StepCpuSeconds() const;
  void Apply(Command command);
  void Advance(Done done);
  void Deliver(const Done* done);
  void EndWaiting(Running& request);
  void PublishStats();

  const EngineOptions options_;
  LoadedModel loaded_;
  EngineLimits limits_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Backend> backend_;
  cache::PagePool pages_;
  cache::SlotPool slots_;
  cache::SnapshotStore snapshots_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<StepRunner> runner_;
  engine::Scheduler scheduler_;  // the engine thread's, like the three below
  std::unordered_map<uint64_t, Running> requests_;
  std::vector<std::pair<uint64_t, std::shared_ptr<const GenerationRequest>>> begins_;
  struct Reason {
    std::string text;
    bool request_fault = false;
  };
  std::unordered_map<uint64_t, Reason> reasons_;     // why a sequence failed
  std::vector<std::shared_ptr<OutputSink>> called_;  // since the last OnStepDelivered
  double model_seconds_ = 0, sampler_seconds_ = 0, compute_cpu_seconds_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable wake_planner_, wake_runner_;
  std::deque<Command> commands_;
  std::deque<Done> done_;
  std::deque<Job> jobs_;
  uint64_t next_request_ = 1;
  int64_t waiting_ = 0;  // requests let in of which nothing has run yet
  EngineStats stats_;
  bool stopping_ = false;
  bool planner_gone_ = false;
  std::thread planner_, runner_thread_;
};

}  // namespace senko::runtime
