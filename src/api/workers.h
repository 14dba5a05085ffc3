// A few threads that run what is posted to them, in order of posting. One set reads long requests, another writes
// answers, so that neither an I/O thread nor the engine's thread ever waits for text.
#pragma once

#include <functional>
#include <memory>

namespace senko::api {

class Workers {
 public:
  // What jobs wake (WakeBatch) is put together: of short jobs for up to a millisecond and a job, of long ones each for
  // itself, so that it does not wait for the next.
  enum class Jobs { kShort, kLong };
  explicit Workers(int threads, Jobs jobs = Jobs::kShort);
  ~Workers();  // stops
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Never blocks. A job must not throw. Jobs posted after Stop are dropped.
  void Post(std::function<void()> job);
  // As Post, but nobody is woken for it before Wake is called: a wake-up costs more than most jobs.
  void PostQuietly(std::function<void()> job);
  void Wake();
  // Runs what was posted before, then joins. Not from a job.
  void Stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace senko::api
