// What tests on a GPU share.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <vector>

#include "cuda/check.h"
#include "cuda/device.h"
#include "cuda/device_buffer.h"

namespace senko::cuda {

// Skips its cases, saying so, where there is no GPU.
class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!HasDevice()) GTEST_SKIP() << "no CUDA device here";
    UseDevice(0);
  }
};

// A graph of what launch(stream) launches, to be run again and again.
class CapturedGraph {
 public:
  template <typename LaunchAll>
  explicit CapturedGraph(const LaunchAll& launch) {
    SENKO_CUDA(cudaStreamCreate(&stream_));
    SENKO_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    launch(stream_);
    SENKO_CUDA(cudaStreamEndCapture(stream_, &graph_));
    SENKO_CUDA(cudaGraphInstantiate(&exec_, graph_, 0));
  }
  ~CapturedGraph() {
    cudaGraphExecDestroy(exec_);
    cudaGraphDestroy(graph_);
    cudaStreamDestroy(stream_);
  }
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  // After everything before it on the device; waits for its end.
  void Run() {
    SENKO_CUDA(cudaDeviceSynchronize());
    SENKO_CUDA(cudaGraphLaunch(exec_, stream_));
    SENKO_CUDA(cudaStreamSynchronize(stream_));
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

template <typename T>
void Overwrite(const DeviceBuffer<T>& device, const std::vector<T>& host) {
  SENKO_CUDA(cudaMemcpy(device.data(), host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
}

}  // namespace senko::cuda
