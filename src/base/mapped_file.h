// A read-only memory mapping of a whole file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace senko {

enum class AccessPattern { kNormal, kSequential, kRandom };

// Move-only owner of the mapping. The bytes are the page cache's: nothing is copied into anonymous memory.
// A file truncated by somebody else while mapped raises SIGBUS on access, as with every mmap reader.
class MappedFile {
 public:
  MappedFile() = default;
  // Errors: kNotFound, kIo, kInvalidArgument (not a regular file).
  static MappedFile Open(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }
  // Advises the kernel about [offset, offset + size). Never fails: it is advice.
  void Advise(AccessPattern pattern, size_t offset, size_t size) const;

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::filesystem::path path_;
};

// A mapped file that somebody truncates raises SIGBUS where its bytes were. From here on that ends the process with a
// message that names the file, and exit code 2. For programs, once, before threads start.
void ReportTruncatedMappings();

// Reads a whole small file. Errors as above, and kResourceExhausted when it is larger than `limit_bytes`. With
// `allow_stream` the path may be a pipe, which is read to its end.
std::string ReadTextFile(const std::filesystem::path& path, size_t limit_bytes, bool allow_stream = false);

}  // namespace senko
