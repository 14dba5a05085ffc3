#include "runtime/cuda/start_report.h"

#include <cstdio>

namespace senko::runtime {

std::string StartReport::ToString() const {
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  char text[512];
  std::snprintf(
      text, sizeof(text),
      "weights %.2f s (reading %.2f, waiting for copies and permutations %.2f), Engram tables %.2f s, kernels "
      "%.2f s and %.0f MiB, %lld graphs of %lld launches %.2f s and %.0f MiB",
      weights.seconds, reading_seconds, waiting_seconds, engram.seconds, kernels.seconds, mib(kernels.bytes),
      static_cast<long long>(graphs), static_cast<long long>(launches), capture.seconds, mib(capture.bytes));
  return text;
}

}  // namespace senko::runtime
