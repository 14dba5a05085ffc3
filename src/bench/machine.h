// The machine a benchmark ran on, measured in the same run.
#pragma once

#include <string>

#include "base/json.h"
#include "base/thread_pool.h"

namespace senko::bench {

struct Machine {
  std::string cpu;  // model name
  int threads = 0;
  double read_bytes_per_second = 0;  // all threads, far past the last-level cache
  double fma_flops_per_second = 0;   // float32, all threads
};

Machine MeasureMachine(ThreadPool& pool);
Json ToJson(const Machine& machine);
std::string ToText(const Machine& machine);

}  // namespace senko::bench
