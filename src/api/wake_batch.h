// Wake-ups put together. To wake a thread takes a system call and often this thread's place on the processor, more than
// an event's text does: whoever writes many events in a row wakes each I/O thread once for all of them.
#pragma once

#include <memory>
#include <vector>

namespace senko::api {

// Thread-safe.
class Waker {
 public:
  virtual ~Waker() = default;
  virtual void Wake() = 0;
};

// While one exists, what its thread wants to wake waits for Flush or for its end. One at a time on a thread.
class WakeBatch {
 public:
  WakeBatch();
  ~WakeBatch();
  WakeBatch(const WakeBatch&) = delete;
  WakeBatch& operator=(const WakeBatch&) = delete;

  void Flush();
  // With this thread's batch, or at once where there is none. The caller asks once for all it has for the waker's
  // thread until that thread has seen it.
  static void Wake(std::shared_ptr<Waker> waker);

 private:
  std::vector<std::shared_ptr<Waker>> waiting_;
};

}  // namespace senko::api
