// One allocation on a GPU, cut into pieces: measured first without memory, then laid out the same way.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "cuda/device_buffer.h"

namespace senko::runtime {

// Pieces are 256-byte aligned and live as long as the arena.
class DeviceArena {
 public:
  DeviceArena() = default;  // only measures: pieces are null
  explicit DeviceArena(size_t bytes) : memory_(bytes) {}

  template <typename T>
  T* Take(size_t count) {
    const size_t at = used_;
    used_ += (count * sizeof(T) + 255) / 256 * 256;
    if (memory_.data() == nullptr) return nullptr;
    SENKO_CHECK(used_ <= memory_.size());
    return reinterpret_cast<T*>(memory_.data() + at);
  }
  uint8_t* data() const { return memory_.data(); }
  size_t used() const { return used_; }

 private:
  cuda::DeviceBuffer<uint8_t> memory_;
  size_t used_ = 0;
};

}  // namespace senko::runtime
