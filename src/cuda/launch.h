// Kernel launches that may begin while the kernel before them ends (programmatic dependent launch).
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cuda/check.h"

namespace senko::cuda {

// A kernel so launched reads nothing that the kernel before it in the stream writes, and writes nothing that one reads,
// before its WaitForPrevious (ptx.cuh).
struct Launch {
  dim3 grid;
  dim3 block;
  dim3 cluster{1, 1, 1};
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};

// Lets `kKernel` take so much dynamic shared memory on this thread's GPU. Any thread, any time before the launch.
template <auto kKernel>
void AllowSharedBytes(int bytes) {
  static std::atomic<uint64_t> allowed{0};  // a bit a GPU
  int device = 0;
  SENKO_CUDA(cudaGetDevice(&device));
  const uint64_t bit = uint64_t{1} << (device % 64);
  if ((allowed.load(std::memory_order_acquire) & bit) != 0) return;
  SENKO_CUDA(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  allowed.fetch_or(bit, std::memory_order_release);
}

template <typename... Parameters, typename... Arguments>
void Start(const Launch& launch, void (*kernel)(Parameters...), const Arguments&... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = launch.cluster.x;
  attributes[1].val.clusterDim.y = launch.cluster.y;
  attributes[1].val.clusterDim.z = launch.cluster.z;
  const bool clustered = launch.cluster.x * launch.cluster.y * launch.cluster.z > 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = launch.grid;
  config.blockDim = launch.block;
  config.dynamicSmemBytes = launch.shared_bytes;
  config.stream = launch.stream;
  config.attrs = attributes;
  config.numAttrs = clustered ? 2 : 1;
  SENKO_CUDA(cudaLaunchKernelEx(&config, kernel, arguments...));
}

}  // namespace senko::cuda
