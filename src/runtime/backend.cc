#include "runtime/backend.h"

#include "base/error.h"
#include "runtime/cpu_executor.h"
#include "runtime/host_step_runner.h"
#include "runtime/memory_use.h"
#ifdef SENKO_HAS_CUDA
#include "runtime/cuda/cuda_backend.h"
#endif

namespace senko::runtime {
namespace {

class CpuBackend final : public Backend {
 public:
  CpuBackend(const model::Model& model, ThreadPool& pool) : model_(model), pool_(pool) {}

  cache::Memory& memory() override { return cache::HostMemory(); }
  int64_t DefaultCacheBytes(const ExecutorLimits&) const override { return AvailableMemory() / 4; }
  // Memory that is mapped counts when it is written, so nothing is refused here.
  void CheckCacheBytes(const ExecutorLimits&, int64_t) const override {}
  std::string Describe(const ExecutorLimits&) const override { return ""; }
  std::unique_ptr<Executor> MakeExecutor(cache::PagePool& pages, const ExecutorLimits& limits) override {
    model::WorkspaceLimits workspace;
    workspace.max_rows = limits.max_rows;
    workspace.max_sequences = limits.max_sequences;
    return std::make_unique<CpuExecutor>(model_, pages, pool_, workspace);
  }
  std::unique_ptr<StepRunner> MakeRunner(Executor& executor, cache::SlotPool& slots, cache::SnapshotStore& snapshots,
                                         ThreadPool& pool, int64_t max_drawn_rows) override {
    return std::make_unique<HostStepRunner>(executor, slots, snapshots, pool, max_drawn_rows);
  }

 private:
  const model::Model& model_;
  ThreadPool& pool_;
};

}  // namespace

std::unique_ptr<Backend> MakeBackend(const BackendOptions& options, const model::Model& model, ThreadPool& pool,
                                     const ProgressSink& progress) {
  if (options.device == "cpu") {
    if (!model.has_checkpoint()) {
      throw Error(ErrorCode::kUnsupported,
                  "--load-format dummy is for --device cuda; `senko make-model` writes a random model for the CPU");
    }
    return std::make_unique<CpuBackend>(model, pool);
  }
  if (options.device != "cuda") {
    throw Error(ErrorCode::kInvalidArgument, "--device " + options.device + ": must be cpu or cuda");
  }
#ifdef SENKO_HAS_CUDA
  return MakeCudaBackend(options, model, pool, progress);
#else
  (void)progress;
  throw Error(ErrorCode::kUnsupported, "--device cuda: this build has no CUDA; configure it with -DSENKO_CUDA=ON");
#endif
}

}  // namespace senko::runtime
