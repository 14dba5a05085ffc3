#include "cli/line_input.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.h"

namespace senko::cli {
namespace {

// While it lives Ctrl-C leaves in the terminal what has been typed, so that one can see whether there was anything.
class KeepTyped {
 public:
  explicit KeepTyped(bool is_terminal) : set_(is_terminal && ::tcgetattr(STDIN_FILENO, &before_) == 0) {
    if (!set_) return;
    termios keep = before_;
    keep.c_lflag |= NOFLSH;
    ::tcsetattr(STDIN_FILENO, TCSANOW, &keep);
  }
  ~KeepTyped() {
    if (set_) ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  KeepTyped(const KeepTyped&) = delete;
  KeepTyped& operator=(const KeepTyped&) = delete;

  // Drops the line; true if it had anything. A line is not there to be counted until it ends, or lines are switched
  // off.
  bool Discard() const {
    if (!set_) return false;
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON);
    int typed = 0;
    ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    if (::ioctl(STDIN_FILENO, FIONREAD, &typed) != 0) typed = 0;
    ::tcflush(STDIN_FILENO, TCIFLUSH);
    ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
    return typed > 0;
  }

 private:
  termios before_{};
  bool set_;
};

// While it lives SIGINT comes in ppoll only, so that none is missed between a look at the flag and the wait.
class HoldInterrupt {
 public:
  HoldInterrupt() {
    sigset_t held;
    sigemptyset(&held);
    sigaddset(&held, SIGINT);
    ::pthread_sigmask(SIG_BLOCK, &held, &before_);
  }
  ~HoldInterrupt() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  HoldInterrupt(const HoldInterrupt&) = delete;
  HoldInterrupt& operator=(const HoldInterrupt&) = delete;
  const sigset_t& before() const { return before_; }

 private:
  sigset_t before_{};
};

}  // namespace

LineInput::LineInput(std::atomic<bool>& interrupted)
    : interrupted_(&interrupted), is_terminal_(::isatty(STDIN_FILENO) != 0) {}

LineInput::Got LineInput::Next(const char* prompt, std::string* line) {
  const HoldInterrupt hold;
  const KeepTyped keep(is_terminal_);  // before the prompt: who types because of it is heard
  if (is_terminal_) std::fputs(prompt, stderr);
  for (;;) {
    const size_t end = read_.find('\n');
    if (end != std::string::npos || (ended_ && !read_.empty())) {
      *line = read_.substr(0, end);
      read_.erase(0, end == std::string::npos ? end : end + 1);
      return Got::kLine;
    }
    if (ended_) return Got::kEnd;
    if (interrupted_->exchange(false)) {
      read_.clear();
      return keep.Discard() ? Got::kDiscarded : Got::kInterrupted;
    }
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (::ppoll(&input, 1, nullptr, &hold.before()) >= 0) {
      Read();
    } else if (errno != EINTR) {
      throw Error(ErrorCode::kIo, std::string("standard input: ") + std::strerror(errno));
    }
  }
}

void LineInput::Read() {
  std::array<char, 4096> bytes;
  const ssize_t size = ::read(STDIN_FILENO, bytes.data(), bytes.size());
  if (size < 0) throw Error(ErrorCode::kIo, std::string("standard input: ") + std::strerror(errno));
  read_.append(bytes.data(), static_cast<size_t>(size));
  ended_ = size == 0;
}

}  // namespace senko::cli
