#include "base/thread_count.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <string>
#include <thread>

#include "base/error.h"

namespace senko {
namespace {

namespace fs = std::filesystem;

int64_t AllowedCpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return std::thread::hardware_concurrency();  // more CPUs than the set has bits
}

// The file's first kilobyte; empty when there is none.
std::string ReadStart(const fs::path& path, size_t limit = 1024) {
  std::string text(limit, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(text.data(), static_cast<std::streamsize>(limit));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

// The positive number at the start of `text`, which moves behind it and one space; 0 when there is none
// ("max", "-1").
int64_t TakeNumber(std::string_view* text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc() || number <= 0) return 0;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  if (!text->empty() && text->front() == ' ') text->remove_prefix(1);
  return number;
}

// CPUs of one group's quota; 0: none.
int64_t QuotaOf(const fs::path& group, bool version2) {
  int64_t quota = 0, period = 0;
  if (version2) {
    const std::string text = ReadStart(group / "cpu.max");
    std::string_view rest = text;
    quota = TakeNumber(&rest);
    period = TakeNumber(&rest);
  } else {
    const std::string quota_text = ReadStart(group / "cpu.cfs_quota_us");
    const std::string period_text = ReadStart(group / "cpu.cfs_period_us");
    std::string_view quota_rest = quota_text, period_rest = period_text;
    quota = TakeNumber(&quota_rest);
    period = TakeNumber(&period_rest);
  }
  if (quota == 0 || period == 0) return 0;
  return quota / period + (quota % period != 0);
}

bool NamesCpu(std::string_view controllers) {
  while (!controllers.empty()) {
    const size_t comma = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, comma) == "cpu") return true;
    controllers.remove_prefix(std::min(comma + 1, controllers.size()));
  }
  return false;
}

// The tightest of `group` (a path with a leading slash) and its ancestors up to `mount`.
int64_t TightestQuota(const fs::path& mount, std::string_view group, bool version2) {
  int64_t tightest = 0;
  for (;;) {
    while (!group.empty() && group.back() == '/') group.remove_suffix(1);
    fs::path folder = mount;
    folder += group;
    const int64_t quota = QuotaOf(folder, version2);
    if (quota > 0 && (tightest == 0 || quota < tightest)) tightest = quota;
    if (group.empty()) return tightest;
    const size_t slash = group.rfind('/');
    group = group.substr(0, slash == std::string_view::npos ? 0 : slash);
  }
}

}  // namespace

int64_t CgroupCpuQuota(const fs::path& root, std::string_view membership) {
  int64_t tightest = 0;
  while (!membership.empty()) {  // lines of "number:controllers:/group"
    const size_t end = std::min(membership.find('\n'), membership.size());
    const std::string_view line = membership.substr(0, end);
    membership.remove_prefix(std::min(end + 1, membership.size()));
    const size_t first = line.find(':');
    const size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string_view group = line.substr(second + 1);
    const bool version2 = controllers.empty();
    if (!version2 && !NamesCpu(controllers)) continue;
    // Version 1 mounts a hierarchy per set of controllers, usually with a link per controller; version 2
    // beside it is "unified".
    const std::array<fs::path, 2> mounts =
        version2 ? std::array{root, root / "unified"} : std::array{root / "cpu", root / controllers};
    for (const fs::path& mount : mounts) {
      const int64_t quota = TightestQuota(mount, group, version2);
      if (quota > 0 && (tightest == 0 || quota < tightest)) tightest = quota;
    }
  }
  return tightest;
}

int UsableCpus() {
  const int64_t quota = CgroupCpuQuota("/sys/fs/cgroup", ReadStart("/proc/self/cgroup", 65536));
  int64_t cpus = AllowedCpus();
  if (quota > 0) cpus = std::min(cpus, quota);
  return static_cast<int>(std::clamp<int64_t>(cpus, 1, kMaxThreads));
}

int CheckedThreadCount(int64_t flag) {
  if (flag < 0 || flag > kMaxThreads) {
    throw Error(ErrorCode::kInvalidArgument, "--threads " + std::to_string(flag) +
                                                 ": must be between 0 (every CPU this process may use) and " +
                                                 std::to_string(kMaxThreads));
  }
  return static_cast<int>(flag);
}

}  // namespace senko
