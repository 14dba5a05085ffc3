// The operators at the released model's shapes, for one row (decode) and for many (prefill).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/thread_pool.h"

namespace senko::bench {

struct OpCase {
  std::string name;  // "linear fp8 wq_b rows=1"
  double bytes = 0;  // that must come from memory: weights, keys, rows
  double flops = 0;
  // Prepares buffers and returns the work; buffers live as long as the function does.
  std::function<std::function<void()>(ThreadPool&)> prepare;
};

std::vector<OpCase> OpCases();

}  // namespace senko::bench
