// Jobs run in order; wake-ups that jobs ask for are put together, but not for long.
#include "api/workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "api/test_workers.h"
#include "api/wake_batch.h"

namespace senko::api {
namespace {

using namespace std::chrono_literals;

// A thread that looks at once.
struct CountingWaker : Waker {
  void Wake() noexcept override {
    ++count;
    Awake();
  }
  std::atomic<int> count{0};
};

// One that looks when it is told to.
struct SleepyWaker : Waker {
  void Wake() noexcept override { ++count; }
  std::atomic<int> count{0};
};

bool Eventually(const std::function<bool()>& what) {
  for (const auto end = std::chrono::steady_clock::now() + 20s; std::chrono::steady_clock::now() < end;) {
    if (what()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

TEST(WakeBatch, HoldsWhatItsThreadWakes) {
  const auto waker = std::make_shared<CountingWaker>();
  WakeBatch::Wake(waker);
  EXPECT_EQ(waker->count, 1);
  {
    WakeBatch batch;
    WakeBatch::Wake(waker);
    EXPECT_EQ(waker->count, 1);
    std::thread([&] { WakeBatch::Wake(waker); }).join();  // not this thread's batch
    EXPECT_EQ(waker->count, 2);
    batch.Flush();
    EXPECT_EQ(waker->count, 3);
    batch.Flush();
    EXPECT_EQ(waker->count, 3);
    WakeBatch::Wake(waker);
  }
  EXPECT_EQ(waker->count, 4);
  WakeBatch::Wake(waker);
  EXPECT_EQ(waker->count, 5);
}

TEST(Workers, QuietJobsRunWhenWoken) {
  Workers workers(2);
  std::atomic<int> runs{0};
  for (int i = 0; i < 100; ++i) workers.PostQuietly([&] { ++runs; });
  workers.Wake();
  EXPECT_TRUE(Eventually([&] { return runs == 100; }));
  workers.Wake();  // nothing waits
  workers.PostQuietly([&] { ++runs; });
  workers.Stop();  // runs what was posted
  EXPECT_EQ(runs, 101);
}

TEST(WakeBatch, WakesOnceUntilTheThreadHasLooked) {
  const auto waker = std::make_shared<SleepyWaker>();
  WakeBatch::Wake(waker);
  WakeBatch::Wake(waker);
  {
    WakeBatch batch;
    WakeBatch::Wake(waker);  // it is on its way
    waker->Awake();
    WakeBatch::Wake(waker);
    WakeBatch::Wake(waker);
    EXPECT_EQ(waker->count, 1);
  }
  EXPECT_EQ(waker->count, 2);
  waker->Awake();
  WakeBatch::Wake(waker);
  EXPECT_EQ(waker->count, 3);
}

TEST(WakeBatch, HoldsNoMoreThanItHasRoomFor) {
  std::vector<std::shared_ptr<SleepyWaker>> wakers;
  for (int i = 0; i < 100; ++i) wakers.push_back(std::make_shared<SleepyWaker>());
  {
    WakeBatch batch;
    for (const auto& waker : wakers) WakeBatch::Wake(waker);
    EXPECT_EQ(wakers.front()->count, 0);
    EXPECT_EQ(wakers.back()->count, 1);
  }
  for (const auto& waker : wakers) EXPECT_EQ(waker->count, 1);
}

// A job may find its wake-ups held while others wait behind it, and sees them done when none does. However many jobs
// ask, one wake-up is enough for what is put together.
TEST(Workers, WakesWhenTheQueueIsEmpty) {
  Workers workers(1);
  const auto waker = std::make_shared<CountingWaker>();
  std::promise<void> go;
  workers.Post([future = go.get_future().share()] { future.wait(); });
  for (int i = 0; i < 1000; ++i) workers.Post([&] { WakeBatch::Wake(waker); });
  go.set_value();
  EXPECT_TRUE(Eventually([&] { return waker->count >= 1; }));
  workers.Stop();
  EXPECT_GE(waker->count, 1);
  EXPECT_LE(waker->count, 500);
}

// A queue that is never empty does not hold them back for more than a millisecond and a job. The time is the jobs' own:
// of 0.1 ms each no more than a dozen run meanwhile, however busy the machine is.
TEST(Workers, WakesThoughTheQueueIsNeverEmpty) {
  Workers workers(1);
  const auto waker = std::make_shared<CountingWaker>();
  std::atomic<bool> end{false};
  int jobs_meanwhile = 0;
  std::promise<void> woken;
  std::function<void()> again = [&] {
    if (end) return;
    const auto until = std::chrono::steady_clock::now() + 100us;
    while (std::chrono::steady_clock::now() < until) {
    }
    if (waker->count == 0 && ++jobs_meanwhile < 10'000) return workers.Post(again);
    woken.set_value();
    end = true;
  };
  std::promise<void> go;
  workers.Post([future = go.get_future().share()] { future.wait(); });
  workers.Post([&] { WakeBatch::Wake(waker); });
  workers.Post(again);
  workers.Post([] {});
  go.set_value();
  woken.get_future().wait();
  workers.Stop();
  EXPECT_LE(jobs_meanwhile, 12);
}

// What a job has asked for may wait for the job behind it, however long that is. Another thread's wish does not.
TEST(Workers, ALongJobKeepsNobodyElseFromWaking) {
  Workers workers(1);
  const auto waker = std::make_shared<CountingWaker>();
  const LongJobBehind busy(workers, [&] { WakeBatch::Wake(waker); });
  const int before = waker->count;  // 0, unless this machine was busy for a millisecond
  WakeBatch::Wake(waker);
  EXPECT_EQ(waker->count, before + 1);
}

// Where jobs are long, not even what the job before has asked for waits.
TEST(Workers, LongJobsWakeEachForItself) {
  Workers workers(1, Workers::Jobs::kLong);
  const auto waker = std::make_shared<CountingWaker>();
  const LongJobBehind busy(workers, [&] { WakeBatch::Wake(waker); });
  EXPECT_EQ(waker->count, 1);
}

}  // namespace
}  // namespace senko::api
