#include "cli/terminal.h"

#include <unistd.h>

#include <chrono>

#include "base/line_writer.h"

namespace senko::cli {
namespace {

std::string Shown(std::string_view text, int fd) { return ::isatty(fd) != 0 ? ForTerminal(text) : std::string(text); }

}  // namespace

std::string ForTerminal(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f) {
      const int picture = byte == 0x7f ? 0x21 : byte;  // U+2400 is e2 90 80
      shown += "\xe2\x90";
      shown += static_cast<char>(0x80 + picture);
    } else if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {
      shown += "\xef\xbf\xbd";
      ++i;
    } else {
      shown += text[i];
    }
  }
  return shown;
}

void Print(std::string_view text, std::FILE* out) {
  const std::string shown = Shown(text, ::fileno(out));
  std::fwrite(shown.data(), 1, shown.size(), out);
}

void Tell(std::string_view line) { Say(Shown(line, STDERR_FILENO)); }

ProgressSink TerminalProgress() {
  if (::isatty(STDERR_FILENO) == 0) return {};
  auto last = std::chrono::steady_clock::time_point();
  return [last](const Progress& p) mutable {
    const auto now = std::chrono::steady_clock::now();
    const bool finished = p.total != 0 && p.done >= p.total;
    if (!finished && now - last < std::chrono::milliseconds(50)) return;
    last = now;
    const std::string what = ForTerminal(p.what);
    if (finished) {
      std::fprintf(stderr, "\r\x1b[K");
    } else if (p.total != 0) {
      std::fprintf(stderr, "\r\x1b[K%s %3.0f%% (%llu of %llu %s)", what.c_str(),
                   100.0 * static_cast<double>(p.done) / static_cast<double>(p.total),
                   static_cast<unsigned long long>(p.done), static_cast<unsigned long long>(p.total), p.unit);
    } else {
      std::fprintf(stderr, "\r\x1b[K%s %llu %s", what.c_str(), static_cast<unsigned long long>(p.done), p.unit);
    }
    std::fflush(stderr);
  };
}

}  // namespace senko::cli
