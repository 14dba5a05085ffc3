#include "api/workers.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "api/wake_batch.h"

namespace senko::api {
namespace {

using Clock = std::chrono::steady_clock;

// What jobs wake waits for the queue's end, but for no more than this and a job.
constexpr std::chrono::milliseconds kLongestBatch{1};

}  // namespace

struct Workers::State {
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::function<void()>> jobs;
  int idle = 0;  // threads that wait: nobody is woken, which costs a system call, when all are at work
  bool stopping = false;
  bool long_jobs = false;
  std::atomic<bool> quiet = false;  // jobs were posted since the last Wake
  std::vector<std::thread> threads;

  void Run() {
    WakeBatch batch;
    Clock::time_point begun = Clock::now();
    std::unique_lock lock(mutex);
    for (;;) {
      if (jobs.empty() && !stopping) {
        ++idle;
        wake.wait(lock, [this] { return !jobs.empty() || stopping; });
        --idle;
        begun = Clock::now();
      }
      if (jobs.empty()) return;
      std::function<void()> job = std::move(jobs.front());
      jobs.pop_front();
      lock.unlock();
      job();
      job = nullptr;  // what it owns goes before the lock is taken
      const Clock::time_point now = Clock::now();
      lock.lock();
      if (jobs.empty() || long_jobs || now - begun > kLongestBatch) {
        lock.unlock();
        batch.Flush();
        begun = now;
        lock.lock();
      }
    }
  }
};

Workers::Workers(int threads, Jobs jobs) : state_(std::make_unique<State>()) {
  state_->long_jobs = jobs == Jobs::kLong;
  for (int i = 0; i < threads; ++i) state_->threads.emplace_back([state = state_.get()] { state->Run(); });
}

Workers::~Workers() { Stop(); }

void Workers::Post(std::function<void()> job) {
  bool notify = false;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->stopping) return;
    state_->jobs.push_back(std::move(job));
    notify = state_->idle > 0;
  }
  if (notify) state_->wake.notify_one();
}

void Workers::PostQuietly(std::function<void()> job) {
  const std::lock_guard lock(state_->mutex);
  if (state_->stopping) return;
  state_->jobs.push_back(std::move(job));
  state_->quiet = true;
}

void Workers::Wake() {
  if (!state_->quiet.exchange(false)) return;
  size_t wanted = 0;
  {
    const std::lock_guard lock(state_->mutex);
    wanted = std::min(static_cast<size_t>(state_->idle), state_->jobs.size());
  }
  for (; wanted > 0; --wanted) state_->wake.notify_one();
}

void Workers::Stop() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->wake.notify_all();
  for (std::thread& thread : state_->threads) {
    if (thread.joinable()) thread.join();
  }
}

}  // namespace senko::api
