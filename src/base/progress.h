// Progress of a long operation, for a person at a terminal. Callers report; a sink decides what to draw.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace senko {

struct Progress {
  std::string what;  // "scanning weights"
  uint64_t done = 0;
  uint64_t total = 0;     // 0: unknown
  const char* unit = "";  // "bytes", "tokens"
};

// May be called from one thread at a time. An empty function means nobody watches.
using ProgressSink = std::function<void(const Progress&)>;

}  // namespace senko
