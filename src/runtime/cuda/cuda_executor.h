// Runs steps of a model on a GPU (executor.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/backend.h"
#include "runtime/cuda/device_passes.h"
#include "runtime/cuda/pass_graphs.h"
#include "runtime/cuda/step_clock.h"

namespace senko::runtime {

class CudaExecutor final : public Executor {
 public:
  // Bytes that an executor takes on the device, graphs apart.
  static size_t DeviceBytes(const model::Model& model, const ExecutorLimits& limits);

  // Captures every graph, unless `graphs` is off. All of it outlives the executor.
  CudaExecutor(const model::Model& model, const DeviceWeights& weights, const DeviceEngram& engram,
               cache::PagePool& pages, const ExecutorLimits& limits, bool graphs);
  ~CudaExecutor() override;

  int64_t Run(std::span<const model::SequenceInput> sequences) override;
  void Logits(int64_t first, int64_t count, float* logits, uint8_t* finite) override;
  void GatherLogits(std::span<const int64_t> rows, float* logits, uint8_t* finite) override;
  std::span<const int64_t> kept_positions() const override { return batch_.kept_positions(); }
  void Copy(std::span<const BlockCopy> copies, size_t bytes) override;
  void set_probe(model::Probe* probe) override;
  StepProfile ProfileLastStep() override;
  int64_t workspace_bytes() const override { return static_cast<int64_t>(arena_.used()); }

 private:
  void Wait() const;
  const DeviceWeights& weights_;
  ExecutorLimits limits_;
  DeviceArena arena_;
  StepBatch batch_;
  DeviceWorkspace workspace_;
  DevicePasses passes_;
  PassGraphs graphs_;
  cudaStream_t stream_ = nullptr;
  bool eager_;
};

}  // namespace senko::runtime
