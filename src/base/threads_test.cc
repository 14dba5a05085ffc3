// How many threads there are, and what happens when the system gives no more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/thread_count.h"
#include "base/thread_pool.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SENKO_SANITIZED 1
#else
#define SENKO_SANITIZED 0
#endif

namespace senko {
namespace {

namespace fs = std::filesystem;

class Cgroup : public ::testing::Test {
 protected:
  Cgroup() {
    std::string name = (fs::temp_directory_path() / "senko_cgroup_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    root_ = name;
  }
  ~Cgroup() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  int64_t Quota(std::string_view membership) { return CgroupCpuQuota(root_, membership); }

  fs::path root_;
};

TEST_F(Cgroup, AbsentOrUnlimitedIsNoLimit) {
  EXPECT_EQ(Quota(""), 0);
  EXPECT_EQ(Quota("0::/nowhere\n"), 0);
  EXPECT_EQ(Quota("garbage\n:\n1:cpu\n"), 0);
  Write("cpu.max", "max 100000\n");
  EXPECT_EQ(Quota("0::/\n"), 0);
  for (const char* text : {"", "x 1\n", "-1 100000\n", "100000\n", "100000 0\n", "99999999999999999999 1\n"}) {
    Write("cpu.max", text);
    EXPECT_EQ(Quota("0::/\n"), 0) << text;
  }
}

TEST_F(Cgroup, Version2RoundsUpAndAncestorsCount) {
  Write("a/b/cpu.max", "250000 100000\n");
  EXPECT_EQ(Quota("0::/a/b\n"), 3);
  EXPECT_EQ(Quota("0::/a/b/c\n"), 3);  // c sets none
  EXPECT_EQ(Quota("0::/a\n"), 0);
  Write("a/b/cpu.max", "1000 100000\n");
  EXPECT_EQ(Quota("0::/a/b\n"), 1);
  Write("a/b/cpu.max", "800000 100000\n");
  Write("a/cpu.max", "400000 100000\n");
  EXPECT_EQ(Quota("0::/a/b\n"), 4);
  Write("cpu.max", "200000 100000\n");  // a container's own namespace
  EXPECT_EQ(Quota("0::/a/b\n"), 2);
  EXPECT_EQ(Quota("0::/\n"), 2);
}

TEST_F(Cgroup, Version1) {
  const std::string membership = "5:memory:/m\n4:cpu,cpuacct:/box\n3:cpuset:/s\n0::/\n";
  Write("cpu,cpuacct/box/cpu.cfs_quota_us", "-1\n");
  Write("cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Quota(membership), 0);
  Write("cpu,cpuacct/box/cpu.cfs_quota_us", "150000\n");
  EXPECT_EQ(Quota(membership), 2);
  Write("cpu/cpu.cfs_quota_us", "50000\n");
  Write("cpu/cpu.cfs_period_us", "50000\n");
  EXPECT_EQ(Quota(membership), 1);
  EXPECT_EQ(Quota("3:cpuset:/box\n"), 0);
  EXPECT_EQ(Quota("3:cpuacct:/box\n"), 0);  // not the controller that has the quota
}

TEST(ThreadCount, UsableIsWithinAffinity) {
  EXPECT_GE(UsableCpus(), 1);
  EXPECT_LE(UsableCpus(), kMaxThreads);
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &before)) continue;
    CPU_SET(cpu, &one);
    break;
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(UsableCpus(), 1);
  EXPECT_EQ(ThreadPool().size(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

TEST(ThreadCount, FlagIsChecked) {
  for (const int64_t good : {0, 1, 1024}) EXPECT_EQ(CheckedThreadCount(good), good);
  for (const int64_t bad : {int64_t{-1}, int64_t{1025}, int64_t{1} << 32, INT64_MIN}) {
    try {
      CheckedThreadCount(bad);
      ADD_FAILURE() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.what(), ::testing::HasSubstr("--threads " + std::to_string(bad)));
    }
  }
}

int LiveThreads() {
  const fs::directory_iterator tasks("/proc/self/task");
  return static_cast<int>(std::distance(begin(tasks), end(tasks)));
}

// In a child whose address space has room for some of the threads' stacks only: nonzero on the first failure.
int RunOutOfThreads() {
  long pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t room = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE)) + (rlim_t{256} << 20);
  const rlimit limit{room, room};
  if (setrlimit(RLIMIT_AS, &limit) != 0) return 1;
  const int before = LiveThreads();
  try {
    ThreadPool pool(1000);
    return 2;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kResourceExhausted) return 3;
    if (std::string(error.what()).find("a pool of 1000 threads: thread ") == std::string::npos) return 4;
    if (std::string(error.what()).find(" thread 2 ") != std::string::npos) return 5;  // some must have started
  }
  if (LiveThreads() != before) return 6;
  ThreadPool pool(2);  // the stacks are free again
  std::atomic<int> sum{0};
  pool.ParallelFor(100, 1, [&](int64_t begin, int64_t, int) { sum += static_cast<int>(begin); });
  return sum == 4950 ? 0 : 7;
}

TEST(ThreadPoolDeathTest, StopsTheStartedWhenNoMoreCanBe) {
  if (SENKO_SANITIZED) GTEST_SKIP() << "a sanitizer reserves more address space than any limit leaves";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::_Exit(RunOutOfThreads()), ::testing::ExitedWithCode(0), "");
}

double CpuSeconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Workers burn 30 ms of CPU time each, by their own clocks, while the caller sleeps: all of it is counted, none of the
// caller's is, and time asleep is not.
TEST(ThreadPool, WorkersCpuTimeIsTheirs) {
  constexpr int kThreads = 4;
  constexpr double kEach = 0.03;
  ThreadPool pool(kThreads);
  const double before = pool.WorkerCpuSeconds(), all_before = CpuSeconds(CLOCK_PROCESS_CPUTIME_ID);
  std::atomic<int> arrived{0};
  pool.ParallelFor(kThreads, 1, [&](int64_t, int64_t, int thread) {
    ++arrived;
    while (arrived < kThreads) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // one range a thread
    const double start = CpuSeconds(CLOCK_THREAD_CPUTIME_ID);
    while (thread != 0 && CpuSeconds(CLOCK_THREAD_CPUTIME_ID) < start + kEach) {
    }
  });
  const double used = pool.WorkerCpuSeconds() - before;
  EXPECT_GE(used, (kThreads - 1) * kEach);
  EXPECT_LE(used, CpuSeconds(CLOCK_PROCESS_CPUTIME_ID) - all_before);

  // Soon all of them have stopped spinning, on a busy machine later, and then the caller's time is not theirs.
  bool still = false;
  for (int round = 0; round < 100 && !still; ++round) {
    const double idle = pool.WorkerCpuSeconds(), caller = CpuSeconds(CLOCK_THREAD_CPUTIME_ID);
    while (CpuSeconds(CLOCK_THREAD_CPUTIME_ID) < caller + kEach) {
    }
    still = pool.WorkerCpuSeconds() == idle;
  }
  EXPECT_TRUE(still);
}

}  // namespace
}  // namespace senko
