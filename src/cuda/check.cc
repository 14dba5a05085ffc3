#include "cuda/check.h"

#include <stdexcept>
#include <string>

#include "base/error.h"

namespace senko::cuda {

void Check(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  const std::string what =
      std::string(call) + " failed: " + cudaGetErrorName(status) + ": " + cudaGetErrorString(status);
  if (status == cudaErrorMemoryAllocation) throw Error(ErrorCode::kResourceExhausted, what);
  throw std::logic_error(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

}  // namespace senko::cuda
