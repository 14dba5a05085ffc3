// `senko bench ops`: time, bytes, FLOPs and the fraction of the machine's limit, per operator.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "bench/machine.h"
#include "bench/op_cases.h"

namespace senko::bench {

struct OpResult {
  std::string name;
  double seconds = 0;
  double bytes = 0;
  double flops = 0;
  // The larger of bytes / bandwidth and flops / peak, over the time: 1 is the roofline. 0: no limit is stated.
  double fraction_of_limit = 0;
  bool memory_bound = false;  // which of the two binds
  // On a GPU: its multiprocessors' clock while the operator ran, and what else could do the work. Empty: nothing.
  double clock_hz = 0;
  std::string baseline;
  double baseline_seconds = 0;

  void SetLimit(double bytes_per_second, double flops_per_second);
};

// Every case whose name contains `filter`, on the CPU.
std::vector<OpResult> RunOpCases(const std::string& filter, const Machine& machine, ThreadPool& pool);
// Likewise on a GPU, each beginning with nothing in the second-level cache. Error kUnsupported where this build has no
// CUDA.
std::vector<OpResult> RunGpuOpCases(const std::string& filter, const Machine& machine);
std::string ToText(const std::vector<OpResult>& results);
Json ToJson(const std::vector<OpResult>& results);

}  // namespace senko::bench
