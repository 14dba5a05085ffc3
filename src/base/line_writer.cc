#include "base/line_writer.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

namespace senko {
namespace {

constexpr int kPatienceMs = 200;

// A pipe with room takes this much without making the writer wait.
constexpr size_t kPiece = PIPE_BUF;

bool HasRoom(int fd, int patience_ms) {
  pollfd wanted{fd, POLLOUT, 0};
  int ready;
  do {
    ready = ::poll(&wanted, 1, patience_ms);
  } while (ready < 0 && errno == EINTR);
  return ready == 1 && (wanted.revents & POLLOUT) != 0;
}

}  // namespace

bool LineWriter::Write(std::string_view text) {
  while (!text.empty()) {
    if (!HasRoom(fd_, stalled_ ? 0 : kPatienceMs)) {
      stalled_ = true;
      ++dropped_;
      return false;
    }
    const ssize_t written = ::write(fd_, text.data(), std::min(text.size(), kPiece));
    if (written < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (written <= 0) {
      ++dropped_;
      return false;
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
  stalled_ = false;
  return true;
}

LineWriter& StandardError() {
  static LineWriter writer(STDERR_FILENO);
  return writer;
}

void Say(std::string_view line) { StandardError().Write("senko: " + std::string(line) + "\n"); }

}  // namespace senko
