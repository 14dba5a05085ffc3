#include "cli/terminal.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>

namespace senko::cli {

ProgressSink TerminalProgress() {
  if (::isatty(STDERR_FILENO) == 0) return {};
  auto last = std::chrono::steady_clock::time_point();
  return [last](const Progress& p) mutable {
    const auto now = std::chrono::steady_clock::now();
    const bool finished = p.total != 0 && p.done >= p.total;
    if (!finished && now - last < std::chrono::milliseconds(50)) return;
    last = now;
    if (finished) {
      std::fprintf(stderr, "\r\x1b[K");
    } else if (p.total != 0) {
      std::fprintf(stderr, "\r\x1b[K%s %3.0f%% (%llu of %llu %s)", p.what.c_str(),
                   100.0 * static_cast<double>(p.done) / static_cast<double>(p.total),
                   static_cast<unsigned long long>(p.done), static_cast<unsigned long long>(p.total), p.unit);
    } else {
      std::fprintf(stderr, "\r\x1b[K%s %llu %s", p.what.c_str(), static_cast<unsigned long long>(p.done), p.unit);
    }
    std::fflush(stderr);
  };
}

}  // namespace senko::cli
