#include "runtime/memory_use.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace senko::runtime {
namespace {

// A control group's file: a number, or "max" for none (then -1).
int64_t GroupBytes(const std::string& path) {
  std::ifstream file(path);
  int64_t bytes = -1;
  return file >> bytes ? bytes : -1;
}

}  // namespace

int64_t AvailableMemory() {
  int64_t available = 0;
  std::ifstream info("/proc/meminfo");
  std::string key;
  while (info >> key) {
    int64_t kib = 0;
    if (key == "MemAvailable:" && info >> kib) available = kib * 1024;
    std::string rest;
    std::getline(info, rest);
  }
  // Version 2 of control groups: "0::/path". Every group above sets a limit as well.
  std::ifstream groups("/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    if (line.rfind("0::/", 0) != 0) continue;
    std::string path = line.substr(3);
    for (;;) {
      const std::string folder = "/sys/fs/cgroup" + path + (path.back() == '/' ? "" : "/");
      const int64_t most = GroupBytes(folder + "memory.max"), used = GroupBytes(folder + "memory.current");
      if (most >= 0 && used >= 0) available = std::min(available, std::max<int64_t>(most - used, 0));
      if (path == "/") break;
      path.resize(std::max<size_t>(path.rfind('/'), 1));
    }
  }
  return available;
}

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
