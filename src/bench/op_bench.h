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
  // The larger of bytes / bandwidth and flops / peak, over the time: 1 is the roofline.
  double fraction_of_limit = 0;
  bool memory_bound = false;  // which of the two binds
};

OpResult RunOpCase(const OpCase& op, const Machine& machine, ThreadPool& pool);
std::string ToText(const std::vector<OpResult>& results);
Json ToJson(const std::vector<OpResult>& results);

}  // namespace senko::bench
