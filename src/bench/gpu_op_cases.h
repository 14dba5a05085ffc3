// The operators of sm_90a at the released model's dimensions, for one row, a few, and a prompt's.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace senko::bench {

// y[rows, out] = x[rows, in] w[out, in]^T in bf16: what a library is asked for as a baseline.
struct Product {
  int64_t rows = 0, out = 0, in = 0;
};

using GpuWork = std::function<void(cudaStream_t)>;

// The work, and the baseline's if the case has one. They own the device memory that they use.
struct GpuWorks {
  GpuWork work;
  GpuWork baseline;
};

struct GpuOpCase {
  std::string name;  // "linear fp8 wq_b 32768x1280 rows=1"
  double bytes = 0;  // that it must read and write
  double flops = 0;
  bool host_memory = false;  // of the bytes: the GPU's limits are not theirs
  double rate = 1;           // of its multiplications, in bf16's: 2 for int8
  std::function<GpuWorks()> prepare;
  std::string baseline;           // what GpuWorks::baseline is
  std::vector<Product> products;  // what a library would be asked for instead
};

std::vector<GpuOpCase> GpuOpCases();

}  // namespace senko::bench
