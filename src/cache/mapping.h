// Anonymous memory straight from the kernel: address space now, pages when written.
#pragma once

#include <cstddef>
#include <cstdint>

namespace senko::cache {

// Zero bytes give a null pointer. Errors: kResourceExhausted naming `what` and the size.
uint8_t* MapAnonymous(size_t bytes, const char* what);
void Unmap(uint8_t* data, size_t bytes) noexcept;

}  // namespace senko::cache
