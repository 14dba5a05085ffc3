// Helpers of this room's tests: a folder that goes away, hand-made files, and the text of a refusal.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include "base/error.h"
#include "base/mapped_file.h"
#include "checkpoint/make_model.h"

namespace senko::checkpoint {

class TestFolder {
 public:
  TestFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "senko-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot make a temporary folder");
    path_ = pattern;
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline void WriteBytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string ReadBytes(const std::filesystem::path& path) { return ReadTextFile(path, size_t{1} << 30); }

// A safetensors file with any header and `data_bytes` zeros.
inline std::string RawSafetensors(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + std::string(data_bytes, '\0');
}

// The message of the senko::Error that `action` throws, with its code in front; "accepted" when it does not.
inline std::string Refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return std::string(ErrorCodeName(error.code())) + ": " + error.what();
  }
  return "accepted";
}

inline std::filesystem::path ModelFolder(const char* name) {
  return std::filesystem::path(SENKO_SOURCE_DIR) / "models" / name;
}

// models/tiny with random weights.
inline void MakeTiny(const std::filesystem::path& out, uint64_t max_shard_bytes = 0, uint64_t seed = 1,
                     int threads = 1) {
  std::ostringstream log;
  MakeModelOptions options;
  options.config = ModelFolder("tiny");
  options.out = out;
  options.seed = seed;
  options.max_shard_bytes = max_shard_bytes;
  options.threads = threads;
  MakeModel(options, log, {});
}

}  // namespace senko::checkpoint
