#include "cli/interrupt.h"

#include <atomic>
#include <cstdlib>
#include <iterator>
#include <utility>

namespace senko::cli {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

std::atomic<int> signal_seen{0};  // not yet acted upon
static_assert(std::atomic<int>::is_always_lock_free);

}  // namespace

UnwindOnSignals::UnwindOnSignals(ProgressSink inner) {
  sink_ = [inner = std::move(inner)](const Progress& p) {
    if (const int number = signal_seen.exchange(0)) throw Interrupted{number};
    if (inner) inner(p);
  };
  struct sigaction action {};
  action.sa_handler = [](int number) { signal_seen = number; };
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    ::sigaction(kSignals[i], nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN) ::sigaction(kSignals[i], &action, nullptr);
  }
}

UnwindOnSignals::~UnwindOnSignals() {
  for (size_t i = 0; i < std::size(kSignals); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
  if (const int number = signal_seen.exchange(0)) std::raise(number);
}

void EndBySignal(const Interrupted& interrupted) {
  std::signal(interrupted.signal, SIG_DFL);
  std::raise(interrupted.signal);
  std::abort();  // not reached: the default of each of these signals ends the process
}

}  // namespace senko::cli
