#include "cache/memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/error.h"

namespace senko::cache {
namespace {

class AnonymousMappings final : public Memory {
 public:
  uint8_t* Take(size_t bytes, const char* what) override {
    if (bytes == 0) return nullptr;
    void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
      throw Error(ErrorCode::kResourceExhausted,
                  "cannot map " + std::to_string(bytes) + " bytes for " + what + ": " + std::strerror(errno));
    }
    ::madvise(data, bytes, MADV_HUGEPAGE);
    return static_cast<uint8_t*>(data);
  }
  void Give(uint8_t* data, size_t bytes) noexcept override {
    if (data != nullptr) ::munmap(data, bytes);
  }
  void Fill(uint8_t* data, uint8_t value, size_t bytes) override { std::memset(data, value, bytes); }
};

}  // namespace

Memory& HostMemory() {
  static AnonymousMappings memory;
  return memory;
}

}  // namespace senko::cache
