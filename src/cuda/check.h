// A failed call of the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

namespace senko::cuda {

// Throws Error kResourceExhausted when memory is what failed, std::logic_error otherwise: a fault of our own, or of the
// machine. `call` names what failed.
void Check(cudaError_t status, const char* call, const char* file, int line);

}  // namespace senko::cuda

#define SENKO_CUDA(call) ::senko::cuda::Check((call), #call, __FILE__, __LINE__)
