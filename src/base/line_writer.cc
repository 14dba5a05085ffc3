#include "base/line_writer.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <thread>

namespace senko {
namespace {

constexpr std::chrono::milliseconds kPatience{200};
// Between two tries. A terminal may say that it has room and take nothing, so waiting is not left to poll.
constexpr std::chrono::milliseconds kPause{1};
constexpr int kFirstOther = 3;  // descriptor; those below are the standard files, even where they are closed

bool HasRoom(int fd) {
  pollfd wanted{fd, POLLOUT, 0};
  return ::poll(&wanted, 1, 0) != 0;  // an error is for write to tell
}

// What `fd` refers to, opened for this writer alone so that it never waits, or -1.
int OpenAgain(int fd) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const int again = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (again < 0 || again >= kFirstOther) return again;
  const int higher = ::fcntl(again, F_DUPFD_CLOEXEC, kFirstOther);
  ::close(again);
  return higher;
}

}  // namespace

LineWriter::LineWriter(int fd) : fd_(fd), patience_(kPatience) {
  struct stat info {};
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY || ::fstat(fd, &info) != 0) return;  // write tells
  if (S_ISSOCK(info.st_mode)) {
    way_ = Way::kSend;
  } else if (S_ISFIFO(info.st_mode) || (S_ISCHR(info.st_mode) && ::isatty(fd) != 0)) {
    const int again = OpenAgain(fd);
    owned_ = again >= 0;
    if (owned_) fd_ = again;
    if (!owned_) way_ = Way::kAskFirst;
  }
}

LineWriter::~LineWriter() {
  if (owned_) ::close(fd_);
}

// As write does; EAGAIN: no room now.
ssize_t LineWriter::Try(std::string_view text) const {
  if (way_ == Way::kSend) return ::send(fd_, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (way_ == Way::kWrite) return ::write(fd_, text.data(), text.size());
  if (!HasRoom(fd_)) {
    errno = EAGAIN;
    return -1;
  }
  return ::write(fd_, text.data(), std::min<size_t>(text.size(), PIPE_BUF));  // all that a pipe with room must take
}

bool LineWriter::Put(std::string_view text, Clock::time_point until) {
  bool first = true;
  while (!text.empty()) {
    const ssize_t written = Try(text);
    if (written < 0 && errno == EINTR) continue;
    if (written > 0) {
      if (first) patience_ = kPatience;
      cut_ = text[static_cast<size_t>(written) - 1] != '\n';
      text.remove_prefix(static_cast<size_t>(written));
    } else {
      const Clock::time_point before = Clock::now();
      const bool no_room = written < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
      if (!no_room || patience_ <= Clock::duration::zero() || before >= until) return false;
      std::this_thread::sleep_for(kPause);
      patience_ -= Clock::now() - before;
    }
    first = false;
  }
  return true;
}

bool LineWriter::Write(std::string_view text) {
  const Clock::time_point until = Clock::now() + kPatience;
  {
    std::unique_lock lock(mutex_);
    free_.wait_until(lock, until, [this] { return !writing_ || held_; });
    if (writing_) {
      held_ = true;
      ++dropped_;
      return false;
    }
    writing_ = true;
  }
  const bool whole = (!cut_ || Put("\n", until)) && Put(text, until);
  if (!whole) ++dropped_;
  {
    const std::lock_guard lock(mutex_);
    writing_ = held_ = false;
  }
  free_.notify_one();
  return whole;
}

LineWriter& StandardError() {
  static LineWriter& writer = *new LineWriter(STDERR_FILENO);  // never deleted: threads may outlive static objects
  return writer;
}

void Say(std::string_view line) { StandardError().Write("senko: " + std::string(line) + "\n"); }

}  // namespace senko
