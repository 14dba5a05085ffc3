// SIGTERM and SIGINT of a server: at once while it loads, then one to finish what runs and one to stop.
#pragma once

#include <signal.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace senko::cli {

// Taken by a thread of its own. Made before any other thread, which then all have them blocked.
class ServeSignals {
 public:
  // `on_loading` is called on that thread for a signal before Serving.
  explicit ServeSignals(std::function<void()> on_loading);
  ~ServeSignals();
  ServeSignals(const ServeSignals&) = delete;
  ServeSignals& operator=(const ServeSignals&) = delete;

  void Serving();
  // Returns when the first signal has come after Serving.
  void Wait();
  // Calls `stop` for each signal after the first, on the signals' thread, or here if it has come already; an empty one
  // for nothing more.
  void OnMore(std::function<void()> stop);

 private:
  void Run();

  sigset_t set_{};
  std::mutex mutex_;  // of all below; held while a function is called, so that OnMore({}) waits for it
  std::condition_variable first_;
  std::function<void()> on_loading_, on_more_;
  bool serving_ = false, closing_ = false;
  int come_ = 0;  // signals since Serving
  std::thread thread_;
};

}  // namespace senko::cli
