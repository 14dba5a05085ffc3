#include "runtime/memory_use.h"

#include <fstream>
#include <string>

namespace senko::runtime {

MemoryUse ReadMemoryUse() {
  MemoryUse use;
  std::ifstream status("/proc/self/status");
  std::string key;
  while (status >> key) {
    int64_t kib = 0;
    if (key == "VmHWM:" && status >> kib) use.peak_resident_bytes = kib * 1024;
    if (key == "RssAnon:" && status >> kib) use.anonymous_bytes = kib * 1024;
    std::string rest;
    std::getline(status, rest);
  }
  return use;
}

}  // namespace senko::runtime
