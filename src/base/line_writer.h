// Lines for a descriptor whose other end may have stopped reading: a log that nobody takes must not stop the program.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

namespace senko {

// Thread-safe. A line waits for room a moment; once one has not found it, those that follow are dropped at once until
// there is room again. Lines of up to 4,096 bytes are written in one piece.
class LineWriter {
 public:
  explicit LineWriter(int fd) : fd_(fd) {}
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  // `text` with its newline. False: dropped, or cut off.
  bool Write(std::string_view text);
  uint64_t dropped() const { return dropped_; }

 private:
  const int fd_;
  std::atomic<bool> stalled_{false};
  std::atomic<uint64_t> dropped_{0};
};

// The process's.
LineWriter& StandardError();
// "senko: " and `line` on standard error.
void Say(std::string_view line);

}  // namespace senko
