// What the process holds, as the kernel counts it.
#pragma once

#include <cstdint>

namespace senko::runtime {

struct MemoryUse {
  int64_t peak_resident_bytes = 0;  // VmHWM: mapped weights included
  int64_t anonymous_bytes = 0;      // RssAnon now: what is not a file's page cache
};

// Bytes that can still be had: what the system has free or can free, within the limits of the process's control group.
// Zero where nothing says.
int64_t AvailableMemory();

// Zeros where /proc/self/status does not say.
MemoryUse ReadMemoryUse();

}  // namespace senko::runtime
