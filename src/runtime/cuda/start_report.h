// How long the parts of a start took and what it took of the GPU's memory, for a person.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "cuda/check.h"

namespace senko::runtime {

// Of one part: since it was made. `bytes`: of device memory, by what the driver says is free.
class StartPart {
 public:
  StartPart() : begin_(std::chrono::steady_clock::now()), free_(Free()) {}

  struct Taken {
    double seconds = 0;
    int64_t bytes = 0;
  };
  Taken End() const {
    return {std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(), free_ - Free()};
  }

  static int64_t Free() {
    size_t free = 0, total = 0;
    SENKO_CUDA(cudaMemGetInfo(&free, &total));
    return static_cast<int64_t>(free);
  }

 private:
  std::chrono::steady_clock::time_point begin_;
  int64_t free_;
};

// What a backend and its executor say about their parts.
struct StartReport {
  StartPart::Taken weights, engram, kernels, capture;
  double reading_seconds = 0;  // of the weights': threads copied them out of the checkpoint's mapping
  double waiting_seconds = 0;  // and stood behind copies to the GPU and permutations there
  int64_t graphs = 0, launches = 0;

  std::string ToString() const;
};

}  // namespace senko::runtime
