// Where a step's time goes, operator by operator.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace senko::runtime {

// One operator over all layers.
struct OpTime {
  std::string op;
  int64_t calls = 0;
  int64_t launches = 0;
  double seconds = 0;  // of all calls, each with its own beginning and end: nothing overlaps
};

struct StepProfile {
  std::vector<OpTime> ops;    // in order of first use
  double serial_seconds = 0;  // sum of the above
  double step_seconds = 0;    // the step as it runs otherwise, branches and launches overlapping
  int64_t launches = 0;
};

}  // namespace senko::runtime
