// Where the time of a run goes, operator by operator.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "ops/op_table.h"

namespace senko::runtime {

// Totals of one operator. flops counts multiply-adds twice; bytes are the weights (and table rows) it must read.
struct OpTotals {
  int64_t calls = 0;
  double seconds = 0;
  double flops = 0;
  double bytes = 0;
};

// Filled by the engine's thread while a profiled table runs.
struct Profile {
  std::map<std::string, OpTotals> ops;
  void Clear() { ops.clear(); }
};

// `table` with a clock around every operator. `profile` outlives it.
ops::OpTable ProfiledOps(const ops::OpTable& table, Profile* profile);

}  // namespace senko::runtime
