// Runs steps of a model on the CPU: the workspace, the threads and the two passes in order.
#pragma once

#include "base/thread_pool.h"
#include "runtime/executor.h"

namespace senko::runtime {

// The threads outlive it.
class CpuExecutor final : public Executor {
 public:
  CpuExecutor(const model::Model& model, cache::PagePool& pages, ThreadPool& pool,
              const model::WorkspaceLimits& limits);

  const model::Workspace& workspace() const { return workspace_; }
  int64_t Run(std::span<const model::SequenceInput> sequences) override;
  void Logits(int64_t first, int64_t count, float* logits, uint8_t* finite) override;
  void GatherLogits(std::span<const int64_t> rows, float* logits, uint8_t* finite) override;
  std::span<const int64_t> kept_positions() const override;
  void Copy(std::span<const BlockCopy> copies, size_t bytes) override;
  void Wait() override {}  // a call returns when its work is done
  bool UseGraphs(bool) override { return false; }
  void set_probe(model::Probe* probe) override { context_.probe = probe; }
  StepProfile ProfileLastStep() override;
  int64_t workspace_bytes() const override { return workspace_.bytes(); }

 private:
  model::Workspace workspace_;
  model::PassContext context_;
};

}  // namespace senko::runtime
