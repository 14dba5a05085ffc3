// What tests on a GPU share.
#pragma once

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

template <typename T>
DeviceBuffer<T> ToDevice(const std::vector<T>& host) {
  DeviceBuffer<T> device(host.size());
  SENKO_CUDA(cudaMemcpy(device.data(), host.data(), device.bytes(), cudaMemcpyHostToDevice));
  return device;
}
template <typename T>
std::vector<T> ToHost(const DeviceBuffer<T>& device) {
  std::vector<T> host(device.size());
  SENKO_CUDA(cudaMemcpy(host.data(), device.data(), device.bytes(), cudaMemcpyDeviceToHost));
  return host;
}

}  // namespace senko::cuda
