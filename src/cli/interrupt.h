// Signals that end a command which writes files: it is unwound, so that nothing half written stays behind.
#pragma once

#include <csignal>

#include "base/progress.h"

namespace senko::cli {

// Thrown where progress is reported after SIGINT, SIGTERM or SIGHUP.
struct Interrupted {
  int signal = 0;
};

// While it lives, the first of these signals makes `sink`, which passes on to `inner`, throw Interrupted; the same
// signal again ends the process at once. What the process was started to ignore stays ignored. One at a time.
class UnwindOnSignals {
 public:
  explicit UnwindOnSignals(ProgressSink inner);
  ~UnwindOnSignals();  // a signal after the last report takes effect here
  UnwindOnSignals(const UnwindOnSignals&) = delete;
  UnwindOnSignals& operator=(const UnwindOnSignals&) = delete;

  const ProgressSink& sink() const { return sink_; }

 private:
  ProgressSink sink_;
  struct sigaction before_[3] = {};
};

// Ends the process by the signal that came, as its parent expects it.
[[noreturn]] void EndBySignal(const Interrupted& interrupted);

}  // namespace senko::cli
