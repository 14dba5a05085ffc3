#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/error.h"

namespace senko {
namespace {

[[noreturn]] void ThrowErrno(const std::filesystem::path& path, const char* verb, int error) {
  const ErrorCode code = error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo;
  throw Error(code, path.string() + ": cannot " + verb + ": " + std::strerror(error));
}

struct Descriptor {
  int fd;
  ~Descriptor() { ::close(fd); }
};

// Where mappings lie, for the signal handler: fixed size, no locks there. A slot is free while `begin` is 0.
struct MappedRange {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
  char path[256] = {};
};
MappedRange mapped_ranges[1024];
std::mutex mapped_ranges_mutex;  // of writers

void RememberRange(const std::byte* data, size_t size, const std::filesystem::path& path) {
  std::lock_guard<std::mutex> lock(mapped_ranges_mutex);
  for (MappedRange& range : mapped_ranges) {
    if (range.begin.load() != 0) continue;
    std::snprintf(range.path, sizeof(range.path), "%s", path.c_str());
    range.end.store(reinterpret_cast<uintptr_t>(data) + size);
    range.begin.store(reinterpret_cast<uintptr_t>(data));
    return;
  }
}

void ForgetRange(const std::byte* data) {
  std::lock_guard<std::mutex> lock(mapped_ranges_mutex);
  for (MappedRange& range : mapped_ranges) {
    if (range.begin.load() == reinterpret_cast<uintptr_t>(data)) range.begin.store(0);
  }
}

// Async-signal-safe: writes and leaves.
void OnBusError(int, siginfo_t* info, void*) {
  auto put = [](const char* text) { (void)!::write(STDERR_FILENO, text, std::strlen(text)); };
  const uintptr_t at = reinterpret_cast<uintptr_t>(info->si_addr);
  put("senko: ");
  for (const MappedRange& range : mapped_ranges) {
    const uintptr_t begin = range.begin.load();
    if (begin != 0 && begin <= at && at < range.end.load()) {
      put(range.path);
      put(": ");
    }
  }
  put("a mapped file became shorter while it was in use\n");
  ::_exit(2);
}

}  // namespace

void ReportTruncatedMappings() {
  struct sigaction action {};
  action.sa_sigaction = OnBusError;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

MappedFile MappedFile::Open(const std::filesystem::path& path) {
  // Without O_NONBLOCK opening a pipe would wait for a writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) ThrowErrno(path, "open", errno);
  Descriptor closer{fd};
  struct stat info {};
  if (::fstat(fd, &info) != 0) ThrowErrno(path, "stat", errno);
  if (!S_ISREG(info.st_mode)) throw Error(ErrorCode::kInvalidArgument, path.string() + ": not a regular file");
  MappedFile file;
  file.path_ = path;
  file.size_ = static_cast<size_t>(info.st_size);
  if (file.size_ != 0) {
    void* data = ::mmap(nullptr, file.size_, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) ThrowErrno(path, "map", errno);
    file.data_ = static_cast<const std::byte*>(data);
    RememberRange(file.data_, file.size_, path);
  }
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), path_(std::move(other.path_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  ForgetRange(data_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::Advise(AccessPattern pattern, size_t offset, size_t size) const {
  if (offset >= size_) return;
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t begin = offset / page * page;
  const int advice = pattern == AccessPattern::kRandom       ? MADV_RANDOM
                     : pattern == AccessPattern::kSequential ? MADV_SEQUENTIAL
                                                             : MADV_NORMAL;
  ::madvise(const_cast<std::byte*>(data_) + begin, std::min(size + (offset - begin), size_ - begin), advice);
}

std::string ReadTextFile(const std::filesystem::path& path, size_t limit_bytes, bool allow_stream) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | (allow_stream ? 0 : O_NONBLOCK));
  if (fd < 0) ThrowErrno(path, "open", errno);
  Descriptor closer{fd};
  struct stat info {};
  if (::fstat(fd, &info) != 0) ThrowErrno(path, "stat", errno);
  if (S_ISDIR(info.st_mode)) throw Error(ErrorCode::kInvalidArgument, path.string() + ": is a directory");
  if (!allow_stream && !S_ISREG(info.st_mode)) {
    throw Error(ErrorCode::kInvalidArgument, path.string() + ": not a regular file");
  }
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t got = ::read(fd, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) ThrowErrno(path, "read", errno);
    if (got == 0) return text;
    if (text.size() + static_cast<size_t>(got) > limit_bytes) {
      throw Error(ErrorCode::kResourceExhausted,
                  path.string() + ": larger than the limit of " + std::to_string(limit_bytes) + " bytes");
    }
    text.append(buffer, static_cast<size_t>(got));
  }
}

}  // namespace senko
