// Lines for a descriptor whose other end may have stopped reading: a log that nobody takes must not stop the program.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>

namespace senko {

// For any thread. One line is written at a time, and where one was cut off the next begins on a new line. Lines of up
// to 4,096 bytes come whole through a pipe that other programs write to as well.
//
// A call takes 200 ms at most, the wait for other threads' lines included, and all lines share them: what is left of
// them passes on from line to line, until one finds room as soon as it comes. When they are used up lines are dropped
// at once.
//
// No write waits for room: pipes and terminals are opened once more for that (O_NONBLOCK belongs to the open file,
// which `fd` shares with other programs), and sockets have a flag. Two cases are left. A file takes as long as its
// disk. And a pipe or terminal that may not be opened (another user's, or there is no /proc) is asked for room before
// each piece; a write to it does wait when somebody else takes that room first, or when a terminal has less of it than
// the piece needs. That holds one thread until there is room; the others drop their lines.
class LineWriter {
 public:
  // `fd` is not owned, and must stay what it is.
  explicit LineWriter(int fd);
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  // `text` with its newline. False: dropped, or cut off.
  bool Write(std::string_view text);
  uint64_t dropped() const { return dropped_; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class Way { kWrite, kSend, kAskFirst };

  ssize_t Try(std::string_view text) const;
  bool Put(std::string_view text, Clock::time_point until);

  int fd_;
  bool owned_ = false;
  Way way_ = Way::kWrite;
  std::mutex mutex_;
  std::condition_variable free_;
  bool writing_ = false;  // guarded by mutex_, as is held_; who has set it has the two after that
  bool held_ = false;     // it takes too long
  Clock::duration patience_;
  bool cut_ = false;  // the last byte written ended no line
  std::atomic<uint64_t> dropped_{0};
};

// The process's, for as long as it runs.
LineWriter& StandardError();
// "senko: " and `line` on standard error.
void Say(std::string_view line);

}  // namespace senko
