// An owning block of host memory that kernels read in place.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <string>
#include <utility>

#include "base/error.h"
#include "cuda/check.h"

namespace senko::cuda {

// Move-only, zeros at first, page-aligned. Mapped by us, with huge pages where the system has them, and then
// registered: faulting in what the driver allocates itself takes ten times as long. `T` is trivial. Error
// kResourceExhausted when it does not fit, or may not be locked.
template <typename T>
class MappedBuffer {
 public:
  MappedBuffer() = default;
  explicit MappedBuffer(size_t count) {
    if (count == 0) return;
    void* mapped = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
      throw Error(ErrorCode::kResourceExhausted,
                  "no room for " + std::to_string(count * sizeof(T)) + " bytes of host memory");
    }
    data_ = static_cast<T*>(mapped);
    count_ = count;
    try {
      madvise(mapped, bytes(), MADV_HUGEPAGE);  // advice: small pages are read as fast
      SENKO_CUDA(cudaHostRegister(mapped, bytes(), cudaHostRegisterMapped | cudaHostRegisterPortable));
      registered_ = true;
      SENKO_CUDA(cudaHostGetDevicePointer(reinterpret_cast<void**>(&device_), mapped, 0));
    } catch (...) {
      Release();
      throw;
    }
  }
  ~MappedBuffer() { Release(); }
  MappedBuffer(MappedBuffer&& other) noexcept { Swap(other); }
  MappedBuffer& operator=(MappedBuffer&& other) noexcept {
    MappedBuffer taken(std::move(other));
    Swap(taken);
    return *this;
  }

  T* data() const { return data_; }      // for the host
  T* device() const { return device_; }  // for kernels
  size_t size() const { return count_; }
  size_t bytes() const { return count_ * sizeof(T); }

 private:
  void Swap(MappedBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(device_, other.device_);
    std::swap(count_, other.count_);
    std::swap(registered_, other.registered_);
  }
  void Release() noexcept {
    if (registered_) cudaHostUnregister(data_);
    if (data_ != nullptr) munmap(data_, bytes());
  }

  T* data_ = nullptr;
  T* device_ = nullptr;
  size_t count_ = 0;
  bool registered_ = false;
};

}  // namespace senko::cuda
