// Kernel launches that may begin while the kernel before them ends (programmatic dependent launch).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

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
