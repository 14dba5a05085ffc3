// The machine a benchmark ran on, measured in the same run.
#pragma once

#include <string>

#include "base/json.h"
#include "base/thread_pool.h"

namespace senko::bench {

struct Machine {
  std::string name;  // of the CPU or the GPU
  bool gpu = false;
  int threads = 0;                   // CPU
  double read_bytes_per_second = 0;  // of memory, far past the last-level cache
  double fma_flops_per_second = 0;   // CPU: float32, all threads
  double bf16_flops_per_second = 0;  // GPU: tensor cores, at the clock that its power allows

  double flops_per_second() const { return gpu ? bf16_flops_per_second : fma_flops_per_second; }
};

Machine MeasureMachine(ThreadPool& pool);

// The GPU in use. Takes 2 GiB of its memory meanwhile. Errors: kUnsupported where this build has none,
// kResourceExhausted.
Machine MeasureGpu();

// By the name of --device.
Machine MeasureMachine(const std::string& device, ThreadPool& pool);

Json ToJson(const Machine& machine);
std::string ToText(const Machine& machine);

}  // namespace senko::bench
