#include "cli/serve_signals.h"

#include <pthread.h>

#include <utility>

namespace senko::cli {

ServeSignals::ServeSignals(std::function<void()> on_loading) : on_loading_(std::move(on_loading)) {
  sigemptyset(&set_);
  sigaddset(&set_, SIGTERM);
  sigaddset(&set_, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  signal(SIGPIPE, SIG_IGN);
  thread_ = std::thread([this] { Run(); });
}

ServeSignals::~ServeSignals() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  pthread_kill(thread_.native_handle(), SIGTERM);
  thread_.join();
}

void ServeSignals::Run() {
  while (true) {
    int which = 0;
    sigwait(&set_, &which);
    const std::lock_guard lock(mutex_);
    if (closing_) return;
    if (!serving_) {
      on_loading_();
    } else if (++come_ == 1) {
      first_.notify_all();
    } else if (on_more_) {
      on_more_();
    }
  }
}

void ServeSignals::Serving() {
  const std::lock_guard lock(mutex_);
  serving_ = true;
}

void ServeSignals::Wait() {
  std::unique_lock lock(mutex_);
  first_.wait(lock, [this] { return come_ > 0; });
}

void ServeSignals::OnMore(std::function<void()> stop) {
  const std::lock_guard lock(mutex_);
  on_more_ = std::move(stop);
  if (come_ > 1 && on_more_) on_more_();
}

}  // namespace senko::cli
