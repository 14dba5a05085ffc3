// Wake-ups put together. To wake a thread takes a system call and often this thread's place on the processor, more than
// an event's text does: whoever writes many events in a row wakes each I/O thread once for all of them.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

namespace senko::api {

// A thread that may sleep. Thread-safe.
class Waker {
 public:
  virtual ~Waker() = default;
  // Of the thread that was woken, before it looks at what there is for it: for what comes later it is woken again.
  void Awake() { woken_ = false; }

 private:
  friend class WakeBatch;
  virtual void Wake() noexcept = 0;
  void WakeOnce() noexcept {
    if (!woken_.exchange(true)) Wake();
  }

  std::atomic<bool> woken_ = false;  // really, and not merely with a batch; and has not looked since
};

// While one exists, what its thread wants to wake waits for Flush or for its end. One at a time on a thread.
class WakeBatch {
 public:
  WakeBatch();
  ~WakeBatch();
  WakeBatch(const WakeBatch&) = delete;
  WakeBatch& operator=(const WakeBatch&) = delete;

  void Flush() noexcept;
  // With this thread's batch, or at once where there is none; after what there is for the waker's thread is where that
  // thread finds it. What one thread's batch still holds keeps no other thread from waking.
  static void Wake(const std::shared_ptr<Waker>& waker) noexcept;

 private:
  static constexpr size_t kMost = 64;  // wakers held; more are woken at once

  std::vector<std::shared_ptr<Waker>> waiting_;  // each once
};

}  // namespace senko::api
