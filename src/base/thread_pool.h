// A fixed set of worker threads for data-parallel loops. The caller's thread takes part.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace senko {

// Thread-compatible: one ParallelFor at a time, from one thread (the engine's). Results must not depend on how
// the range is cut: every operator here partitions outputs, never a reduction.
class ThreadPool {
 public:
  // `threads` >= 1 counts the caller's; 0 takes UsableCpus(). kResourceExhausted: the system starts no more.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;
  // CPU time the workers have used, in seconds; the caller's thread is not one of them. Any thread may ask.
  double WorkerCpuSeconds() const;

  // Calls body(begin, end, thread) over disjoint ranges covering [0, count), each a multiple of `grain` long
  // (the last may be shorter). `thread` is in [0, size()) and identifies scratch; at most one call runs per
  // thread value at a time. Ranges are handed out dynamically. The first exception is rethrown here, after all
  // threads stopped.
  void ParallelFor(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t, int)>& body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace senko
