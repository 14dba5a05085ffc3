// How many threads a pool should have.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace senko {

inline constexpr int kMaxThreads = 1024;

// CPUs this process may use, 1 .. kMaxThreads: those of its scheduling affinity, and no more than its control
// groups' CPU quota lets run at once (a part of a CPU counts as one). Reads a few small files.
int UsableCpus();

// The tightest quota of the control groups that `membership` (the text of /proc/self/cgroup) names, and of
// their ancestors, under the mount point `root`, in whole CPUs rounded up; 0 when there is none. Understands
// cpu.max of version 2 and cpu.cfs_quota_us / cpu.cfs_period_us of version 1. What is absent or malformed is
// no limit.
int64_t CgroupCpuQuota(const std::filesystem::path& root, std::string_view membership);

// A --threads flag: 0 (take UsableCpus) .. kMaxThreads. Errors: kInvalidArgument naming the flag.
int CheckedThreadCount(int64_t flag);

}  // namespace senko
