// From a step's hidden rows to its tokens, on the GPU: the head's logits of the rows that are drawn from, the draws,
// and the results on their way to the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

#include "model/model.h"
#include "ops/sample/sample_sm90.h"
#include "runtime/cuda/device_arena.h"
#include "runtime/cuda/device_passes.h"
#include "runtime/cuda/device_workspace.h"
#include "runtime/cuda/step_batch.h"

namespace senko::runtime {

struct DeviceDrawLimits {
  int64_t max_draws = 0;   // of a step
  int64_t max_listed = 0;  // biases of all of a step's draws, and bans
  int64_t num_tables = 0;  // answers whose tokens are counted here
};

// Owned by one executor, used by its thread.
class DeviceDraws {
 public:
  // Everything outlives it. `passes` may be null where `arena` only measures. Takes its device memory from `arena`, and
  // pinned memory unless that only measures.
  DeviceDraws(const model::Model& model, DevicePasses* passes, const StepBatch& batch, const DeviceWorkspace& workspace,
              const DeviceDrawLimits& limits, DeviceArena& arena);
  ~DeviceDraws();
  DeviceDraws(const DeviceDraws&) = delete;
  DeviceDraws& operator=(const DeviceDraws&) = delete;

  // The bounds on draws that graphs are made for: ascending, the last is max_draws.
  std::vector<int64_t> Regimes() const;
  // Head and draws of a step of at most so many, behind its decoder pass. The batch says what they are.
  void Launch(int64_t most_draws, cudaStream_t stream) const;
  void Capture(cudaStream_t stream);
  int64_t graphs() const { return static_cast<int64_t>(graphs_.size()); }
  int64_t nodes() const { return nodes_; }
  // The same for `draws` of them.
  void Run(int64_t draws, bool eager, cudaStream_t stream) const;

  // Brings what SampleJobSm90's lists are cut from. Waits if the copy before last has not ended.
  void SendLists(std::span<const int32_t> bias_ids, std::span<const float> bias_values,
                 std::span<const int32_t> banned_ids, cudaStream_t stream);

  const DeviceDrawLimits& limits() const { return limits_; }
  const int32_t* tokens() const { return tokens_; }  // [draws] of the last step
  const ops::SampleResultSm90* results() const { return results_; }

  // Counts of an answer's tokens [vocab], and its prompt's tokens as bits.
  uint16_t* table(int64_t index) const { return tables_ + index * table_stride_; }
  uint32_t* prompt_bits(int64_t index) const { return prompt_bits_ + index * bits_stride_; }

 private:
  const StepBatch& batch_;
  const DeviceWorkspace& ws_;
  DevicePasses* const passes_;
  const int64_t vocab_;
  const DeviceDrawLimits limits_;
  int64_t table_stride_ = 0, bits_stride_ = 0;  // elements

  uint16_t* tables_ = nullptr;
  uint32_t* prompt_bits_ = nullptr;
  int32_t* bias_ids_ = nullptr;  // [max_listed], as the next two
  float* bias_values_ = nullptr;
  int32_t* banned_ids_ = nullptr;
  int32_t* tokens_ = nullptr;
  ops::SampleResultSm90* results_ = nullptr;

  uint8_t* pinned_[2] = {};  // bias ids, values, banned ids
  cudaEvent_t copied_[2] = {};
  int next_ = 0;
  std::vector<cudaGraphExec_t> graphs_;  // by regime
  int64_t nodes_ = 0;
};

}  // namespace senko::runtime
