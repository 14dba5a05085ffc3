#include "server/process_stats.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <system_error>

namespace senko::server {
namespace {

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");  // pages: all, resident, ...
  int64_t all = 0, resident = 0;
  return statm >> all >> resident ? resident * sysconf(_SC_PAGESIZE) : 0;
}

int64_t OpenFiles() {
  std::error_code error;
  int64_t count = -1;  // the listing is a file itself
  for (std::filesystem::directory_iterator at("/proc/self/fd", error), end; !error && at != end; at.increment(error)) {
    ++count;
  }
  return error || count < 0 ? 0 : count;
}

}  // namespace

ProcessStats ReadProcessStats() {
  ProcessStats stats;
  timespec time{};
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) == 0) {
    stats.cpu_seconds = static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }
  stats.resident_bytes = ResidentBytes();
  stats.open_files = OpenFiles();
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) stats.max_files = static_cast<int64_t>(limit.rlim_cur);
  return stats;
}

}  // namespace senko::server
