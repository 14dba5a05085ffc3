// Runs steps of a model on a GPU (executor.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/backend.h"
#include "runtime/cuda/device_draws.h"
#include "runtime/cuda/device_passes.h"
#include "runtime/cuda/pass_graphs.h"
#include "runtime/cuda/start_report.h"
#include "runtime/cuda/step_clock.h"

namespace senko::runtime {

// What a step draws: from which of its kept rows (ascending), and how.
struct StepDraws {
  std::vector<int64_t> rows;
  std::vector<ops::SampleJobSm90> jobs;  // SampleJobSm90::row is an index into `rows`
  std::vector<int32_t> bias_ids, banned_ids;
  std::vector<float> bias_values;
};

class CudaExecutor final : public Executor {
 public:
  // Bytes that an executor takes on the device, graphs apart.
  static size_t DeviceBytes(const model::Model& model, const ExecutorLimits& limits);

  // Captures every graph, unless `graphs` is off, and reports that. All else outlives the executor.
  CudaExecutor(const model::Model& model, const DeviceWeights& weights, const DeviceEngram& engram,
               cache::PagePool& pages, const ExecutorLimits& limits, bool graphs, StartReport* report);
  ~CudaExecutor() override;

  int64_t Run(std::span<const model::SequenceInput> sequences) override;
  void Logits(int64_t first, int64_t count, float* logits, uint8_t* finite) override;
  void GatherLogits(std::span<const int64_t> rows, float* logits, uint8_t* finite) override;
  std::span<const int64_t> kept_positions() const override { return batch_.kept_positions(); }
  void Copy(std::span<const BlockCopy> copies, size_t bytes) override;
  void Wait() override;
  bool UseGraphs(bool graphs) override;
  void set_probe(model::Probe* probe) override;
  StepProfile ProfileLastStep() override;
  int64_t workspace_bytes() const override { return static_cast<int64_t>(arena_.used()); }

  // For the runner that draws here. Both passes and no wait; ids below zero are the tokens that the jobs of the launch
  // before drew. `begun`, unless null, is recorded when all that they read is there.
  void LaunchPasses(std::span<const model::SequenceInput> sequences, const StepDraws& draws, cudaEvent_t begun);
  // Behind them: head and draws. The results lie in draws().
  void LaunchDraws();
  const DeviceDraws& draws() const { return draws_; }
  cudaStream_t stream() const { return stream_; }

  // Overwrites the activations with bytes that are NaN in every format, after the steps so far: a test's proof that
  // the next one reads nothing that it has not written.
  void PoisonWorkspace();

 private:
  ExecutorLimits limits_;
  DeviceArena arena_;
  StepBatch batch_;
  size_t workspace_begin_;  // bytes of the arena before the activations
  std::unique_ptr<DeviceWorkspace> workspace_;
  size_t workspace_end_;  // and with them
  std::unique_ptr<DevicePasses> passes_;
  DeviceDraws draws_;
  std::optional<DeviceProbe> probe_;
  PassGraphs graphs_;
  cudaStream_t stream_ = nullptr;
  const bool has_graphs_;
  bool eager_;
};

}  // namespace senko::runtime
