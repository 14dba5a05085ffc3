#include "cuda/device.h"

#include "base/error.h"
#include "cuda/check.h"

namespace senko::cuda {

Device UseDevice(int ordinal) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    throw Error(ErrorCode::kNotFound, std::string("--device cuda: no usable GPU here: ") + cudaGetErrorString(status));
  }
  if (ordinal < 0 || ordinal >= count) {
    throw Error(ErrorCode::kNotFound, "--device cuda: there is no GPU " + std::to_string(ordinal) +
                                          "; this machine has " + std::to_string(count));
  }
  cudaDeviceProp properties{};
  SENKO_CUDA(cudaGetDeviceProperties(&properties, ordinal));
  if (properties.major != 9 || properties.minor != 0) {
    throw Error(ErrorCode::kUnsupported, "--device cuda: GPU " + std::to_string(ordinal) + " (" + properties.name +
                                             ") has architecture sm_" + std::to_string(properties.major) +
                                             std::to_string(properties.minor) +
                                             "; the kernels here are for sm_90 (H100, H200)");
  }
  SENKO_CUDA(cudaSetDevice(ordinal));
  Device device;
  device.ordinal = ordinal;
  device.name = properties.name;
  device.multiprocessors = properties.multiProcessorCount;
  return device;
}

bool HasDevice() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

}  // namespace senko::cuda
