#include "cache/mapping.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/error.h"

namespace senko::cache {

uint8_t* MapAnonymous(size_t bytes, const char* what) {
  if (bytes == 0) return nullptr;
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    throw Error(ErrorCode::kResourceExhausted, std::string("cannot map ") + std::to_string(bytes) + " bytes for " +
                                                   what + ": " + std::strerror(errno));
  }
  ::madvise(data, bytes, MADV_HUGEPAGE);
  return static_cast<uint8_t*>(data);
}

void Unmap(uint8_t* data, size_t bytes) noexcept {
  if (data != nullptr) ::munmap(data, bytes);
}

}  // namespace senko::cache
