#include "base/thread_pool.h"

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/check.h"
#include "base/error.h"
#include "base/thread_count.h"

namespace senko {
namespace {

inline void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Operators of one decode step follow each other within microseconds: spin that long before sleeping.
constexpr int kSpins = 4000;

}  // namespace

struct ThreadPool::State {
  std::vector<std::thread> workers;

  // Also runs when a later worker cannot be started: the earlier ones must be joined.
  ~State() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      stop.store(true, std::memory_order_release);
    }
    wake.notify_all();
    for (auto& worker : workers) worker.join();
  }

  // One loop at a time. Written by the caller while `open` is false and nobody has joined.
  const std::function<void(int64_t, int64_t, int)>* body = nullptr;
  int64_t count = 0;
  int64_t grain = 1;
  std::atomic<int64_t> next{0};
  std::exception_ptr error;  // guarded by mutex

  // A worker joins a loop only while it is open, and the caller, who works too, waits for those who joined: a worker
  // that has no CPU just now costs the loop nothing. Both sides write one of `open` and `joined` before they read the
  // other, sequentially consistent, so a worker never reads a loop that the caller thinks nobody is in.
  std::atomic<uint64_t> generation{0};
  std::atomic<bool> open{false};
  std::atomic<int> joined{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::condition_variable wake;
  int sleepers = 0;  // guarded by mutex

  void Drain(int thread) {
    try {
      for (;;) {
        const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
        if (begin >= count) return;
        (*body)(begin, std::min(begin + grain, count), thread);
      }
    } catch (...) {
      next.store(count, std::memory_order_relaxed);
      std::lock_guard<std::mutex> lock(mutex);
      if (!error) error = std::current_exception();
    }
  }

  void Work(int thread) {
    uint64_t seen = 0;
    for (;;) {
      int spins = 0;
      while (generation.load(std::memory_order_acquire) == seen && !stop.load(std::memory_order_acquire)) {
        if (++spins < kSpins) {
          Pause();
          continue;
        }
        std::unique_lock<std::mutex> lock(mutex);
        ++sleepers;
        wake.wait(lock, [&] {
          return generation.load(std::memory_order_acquire) != seen || stop.load(std::memory_order_acquire);
        });
        --sleepers;
      }
      if (stop.load(std::memory_order_acquire)) return;
      joined.fetch_add(1);
      seen = generation.load();
      if (open.load()) Drain(thread);
      joined.fetch_sub(1);
    }
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  if (threads <= 0) threads = UsableCpus();
  state_->workers.reserve(static_cast<size_t>(threads - 1));
  for (int t = 1; t < threads; ++t) {
    try {
      state_->workers.emplace_back([state = state_.get(), t] { state->Work(t); });
    } catch (const std::system_error& error) {
      throw Error(ErrorCode::kResourceExhausted, "a pool of " + std::to_string(threads) + " threads: thread " +
                                                     std::to_string(t + 1) + " cannot be started (" + error.what() +
                                                     "); ask for fewer threads or raise the process limit");
    }
  }
}

ThreadPool::~ThreadPool() = default;

double ThreadPool::WorkerCpuSeconds() const {
  double seconds = 0;
  for (std::thread& worker : state_->workers) {
    clockid_t clock;
    timespec time;
    if (::pthread_getcpuclockid(worker.native_handle(), &clock) == 0 && ::clock_gettime(clock, &time) == 0) {
      seconds += static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    }
  }
  return seconds;
}

int ThreadPool::size() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::ParallelFor(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t, int)>& body) {
  SENKO_CHECK(grain > 0);
  if (count <= 0) return;
  State& s = *state_;
  if (s.workers.empty() || count <= grain) {
    body(0, count, 0);
    return;
  }
  s.body = &body;
  s.count = count;
  s.grain = grain;
  s.next.store(0, std::memory_order_relaxed);
  bool asleep;
  s.open.store(true);
  {
    std::lock_guard<std::mutex> lock(s.mutex);
    s.generation.fetch_add(1);
    asleep = s.sleepers > 0;
  }
  if (asleep) s.wake.notify_all();
  s.Drain(0);
  s.open.store(false);
  // A worker in the loop may be waiting for a CPU that this thread holds: after a while, let it have it.
  for (int spins = 0; s.joined.load() != 0; ++spins) {
    if (spins < kSpins) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
  s.body = nullptr;
  if (s.error) {
    std::exception_ptr error = std::exchange(s.error, nullptr);
    std::rethrow_exception(error);
  }
}

}  // namespace senko
