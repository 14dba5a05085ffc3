// What benchmarks on a GPU share.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <vector>

#include "base/error.h"
#include "cuda/check.h"
#include "cuda/device.h"

namespace senko::cuda {

// The rates of an H200 that the shares of a limit are of: reading memory, and bf16 wgmma at the clock that power
// allows.
inline constexpr double kBytesPerSecond = 4.5e12, kFlopsPerSecond = 870e12;

// Words that look random, and are `set` where `mask` is clear.
__global__ inline void FillRandom(uint32_t* p, size_t words, uint32_t mask, uint32_t set) {
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += size_t{gridDim.x} * blockDim.x) {
    uint32_t v = static_cast<uint32_t>(i) * 2654435761u;
    v ^= v >> 15, v *= 0x85EBCA77u, v ^= v >> 13;
    p[i] = (v & mask) | set;
  }
}

// Seconds of call(i): the median of five launches of a graph of as many calls as take 10 ms at `floor` seconds each.
inline double SecondsPerCall(cudaStream_t stream, double floor, const std::function<void(int)>& call) {
  call(0);  // loads the module
  SENKO_CUDA(cudaStreamSynchronize(stream));
  const int calls = static_cast<int>(std::clamp(0.01 / floor, 20.0, 400.0));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  SENKO_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < calls; ++i) call(i);
  SENKO_CUDA(cudaStreamEndCapture(stream, &graph));
  SENKO_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin, end;
  SENKO_CUDA(cudaEventCreate(&begin));
  SENKO_CUDA(cudaEventCreate(&end));
  std::vector<double> times;
  for (int i = 0; i < 7; ++i) {
    SENKO_CUDA(cudaEventRecord(begin, stream));
    SENKO_CUDA(cudaGraphLaunch(exec, stream));
    SENKO_CUDA(cudaEventRecord(end, stream));
    SENKO_CUDA(cudaEventSynchronize(end));
    float ms = 0;
    SENKO_CUDA(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 2) times.push_back(ms * 1e-3 / calls);
  }
  SENKO_CUDA(cudaEventDestroy(begin));
  SENKO_CUDA(cudaEventDestroy(end));
  SENKO_CUDA(cudaGraphExecDestroy(exec));
  SENKO_CUDA(cudaGraphDestroy(graph));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// A program's main: says which GPU it is and runs `benches` there, or says why it cannot and gives 2.
inline int MainOnDevice(const std::function<void()>& benches) {
  try {
    const Device device = UseDevice(0);
    std::printf("%s, %d multiprocessors\n", device.name.c_str(), device.multiprocessors);
    benches();
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}

}  // namespace senko::cuda
