// A GPU's rate of reading memory, as the CPU's is measured: the fastest of several passes over much more than its
// cache.
#include <cuda_runtime.h>

#include <algorithm>

#include "bench/machine.h"
#include "cuda/check.h"
#include "cuda/device.h"
#include "cuda/device_buffer.h"

namespace senko::bench {
namespace {

constexpr int kThreads = 512, kLoads = 8;

// Eight loads of 16 bytes in flight per thread; sums are kept so that none can be left out.
__global__ void ReadAll(const uint4* __restrict__ data, size_t count, uint32_t* sink) {
  uint32_t sum = 0;
  const size_t block = size_t{kThreads} * kLoads;
  for (size_t base = blockIdx.x * block; base < count; base += gridDim.x * block) {
    uint4 v[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) v[i] = __ldcs(data + base + static_cast<size_t>(i) * kThreads + threadIdx.x);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) sum |= v[i].x | v[i].y | v[i].z | v[i].w;
  }
  if (sum != 0) *sink = sum;  // never: all is zero
}

}  // namespace

Machine MeasureGpu() {
  const cuda::Device device = cuda::UseDevice(0);
  const size_t count = (size_t{2} << 30) / sizeof(uint4);  // a multiple of a block's loads
  const cuda::DeviceBuffer<uint4> data(count);
  const cuda::DeviceBuffer<uint32_t> sink(1);
  SENKO_CUDA(cudaMemset(data.data(), 0, data.bytes()));
  cudaEvent_t begin = nullptr, end = nullptr;
  SENKO_CUDA(cudaEventCreate(&begin));
  SENKO_CUDA(cudaEventCreate(&end));
  float fastest = 1e9f;
  for (int run = 0; run < 8; ++run) {
    SENKO_CUDA(cudaEventRecord(begin));
    ReadAll<<<static_cast<unsigned>(device.multiprocessors * 4), kThreads>>>(data.data(), count, sink.data());
    SENKO_CUDA(cudaGetLastError());
    SENKO_CUDA(cudaEventRecord(end));
    SENKO_CUDA(cudaEventSynchronize(end));
    float ms = 0;
    SENKO_CUDA(cudaEventElapsedTime(&ms, begin, end));
    fastest = std::min(fastest, ms);
  }
  SENKO_CUDA(cudaEventDestroy(begin));
  SENKO_CUDA(cudaEventDestroy(end));
  Machine machine;
  machine.name = device.name;
  machine.gpu = true;
  machine.read_bytes_per_second = static_cast<double>(data.bytes()) / (static_cast<double>(fastest) * 1e-3);
  return machine;
}

}  // namespace senko::bench
