// Where the bytes of pages, slots and snapshots lie: memory of the host, or of a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

namespace senko::cache {

// Outlives what was taken from it. Thread-compatible.
class Memory {
 public:
  virtual ~Memory() = default;
  // At least 256-byte aligned; zero bytes give a null pointer. Errors: kResourceExhausted naming `what` and the size.
  virtual uint8_t* Take(size_t bytes, const char* what) = 0;
  virtual void Give(uint8_t* data, size_t bytes) noexcept = 0;
  // Before whatever the caller starts next reads it.
  virtual void Fill(uint8_t* data, uint8_t value, size_t bytes) = 0;
};

// Anonymous mappings: address space now, pages when written.
Memory& HostMemory();

}  // namespace senko::cache
