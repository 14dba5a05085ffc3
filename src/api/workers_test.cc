// Jobs run in order; wake-ups that jobs ask for are put together, but not for long.
#include "api/workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "api/wake_batch.h"

namespace senko::api {
namespace {

using namespace std::chrono_literals;

struct CountingWaker : Waker {
  void Wake() override { ++count; }
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

// A job may find its wake-ups held while others wait behind it, and sees them done when none does.
TEST(Workers, WakesWhenTheQueueIsEmpty) {
  Workers workers(1);
  const auto waker = std::make_shared<CountingWaker>();
  std::promise<void> go;
  workers.Post([future = go.get_future().share()] { future.wait(); });
  for (int i = 0; i < 10; ++i) workers.Post([&] { WakeBatch::Wake(waker); });
  go.set_value();
  EXPECT_TRUE(Eventually([&] { return waker->count == 10; }));
}

// A queue that is never empty does not hold them back.
TEST(Workers, WakesThoughTheQueueIsNeverEmpty) {
  Workers workers(1);
  const auto waker = std::make_shared<CountingWaker>();
  std::atomic<bool> end{false};
  std::function<void()> again = [&] {
    if (!end) workers.Post(again);
  };
  workers.Post(again);
  workers.Post(again);
  workers.Post([&] { WakeBatch::Wake(waker); });
  EXPECT_TRUE(Eventually([&] { return waker->count == 1; }));
  end = true;
  workers.Stop();
}

}  // namespace
}  // namespace senko::api
