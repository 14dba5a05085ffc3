// Lines from standard input, of which Ctrl-C gives up the one that is being typed.
#pragma once

#include <atomic>
#include <string>

namespace senko::cli {

// One at a time, on one thread. `interrupted` is set by the handler of SIGINT, and taken back when it has been told.
class LineInput {
 public:
  enum class Got {
    kLine,
    kDiscarded,    // Ctrl-C behind something that had been typed
    kInterrupted,  // Ctrl-C on an empty line, or when no person types
    kEnd,
  };

  explicit LineInput(std::atomic<bool>& interrupted);

  bool is_terminal() const { return is_terminal_; }
  // Shows `prompt` to a person and waits for a line, without its line break. An interrupt from before the call counts,
  // if there is a wait. Errors: kIo.
  Got Next(const char* prompt, std::string* line);

 private:
  void Read();

  std::atomic<bool>* interrupted_;
  bool is_terminal_;
  bool ended_ = false;
  std::string read_;  // behind the last line that was given
};

}  // namespace senko::cli
