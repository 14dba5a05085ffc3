// Clocks the passes on a GPU: captured once more, in one stream, with the time taken between operators.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/cuda/device_passes.h"
#include "runtime/step_profile.h"

namespace senko::runtime {

// Notes an event at every operator's beginning while a pass is captured.
class StepClock final : public PassObserver {
 public:
  StepClock() = default;
  ~StepClock() override;
  StepClock(const StepClock&) = delete;
  StepClock& operator=(const StepClock&) = delete;

  void Begin(std::string_view op, int64_t layer, cudaStream_t stream) override;
  // After the last operator.
  void End(cudaStream_t stream);
  // Adds the times between events of the last launch, which has ended. `launches`: kernels of each span.
  void Collect(StepProfile* profile) const;

 private:
  void Mark(cudaStream_t stream);
  std::vector<std::string> names_;
  std::vector<cudaEvent_t> events_;  // one more than names
  std::vector<size_t> nodes_;        // of the captured graph before each event
};

}  // namespace senko::runtime
