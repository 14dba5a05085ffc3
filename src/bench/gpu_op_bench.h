// The operators of a GPU beside somebody else's kernels.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/gpu_op_cases.h"
#include "bench/machine.h"
#include "bench/op_bench.h"

namespace senko::bench {

// Somebody else's products, to compare with: all of them, one after the other.
struct ProductLibrary {
  std::string name;
  std::function<GpuWork(const std::vector<Product>&)> prepare;
};

// With the library, if it is not null, as the baseline of cases that are products.
std::vector<OpResult> RunGpuOpCases(const std::string& filter, const Machine& machine, const ProductLibrary* library);

}  // namespace senko::bench
