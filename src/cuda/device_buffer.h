// An owning block of device memory.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "cuda/check.h"

namespace senko::cuda {

// Move-only, uninitialised, at least 256-byte aligned. `T` is trivial. Error kResourceExhausted when it does not fit.
template <typename T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(size_t count) : count_(count) {
    if (count > 0) SENKO_CUDA(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)));
  }
  ~DeviceBuffer() { cudaFree(data_); }  // its status is of an earlier call, if anything
  DeviceBuffer(DeviceBuffer&& other) noexcept { Swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    DeviceBuffer taken(std::move(other));
    Swap(taken);
    return *this;
  }

  T* data() const { return data_; }
  size_t size() const { return count_; }
  size_t bytes() const { return count_ * sizeof(T); }

 private:
  void Swap(DeviceBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
  }
  T* data_ = nullptr;
  size_t count_ = 0;
};

// Blocking copies, for tests and benchmarks.
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
