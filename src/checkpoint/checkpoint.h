// A whole checkpoint: one safetensors file, or shards listed by model.safetensors.index.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"

namespace senko::checkpoint {

// Owns the mappings of all files; a TensorRef's bytes live as long as this object. Move-only; safe to read
// from several threads. Opening maps files and parses headers: no tensor byte is touched or copied.
class Checkpoint {
 public:
  // `path`: a folder, a .safetensors file or an index file. In a folder an index decides; without one there
  // must be exactly one model file. Before anything is returned everything wrong is listed in one kCorrupt
  // (kNotFound when only files are missing) error: missing files, tensors listed but absent, present but
  // unlisted, in another shard than listed, in two files, a wrong metadata.total_size, leftover model files,
  // and the faults of each file.
  static Checkpoint Open(const std::filesystem::path& path);

  const std::vector<TensorRef>& tensors() const { return tensors_; }  // ascending by name
  const TensorRef* Find(std::string_view name) const;                 // nullptr: absent
  const TensorRef& At(std::string_view name) const;                   // kNotFound names the tensor

  // Sum over tensors, without headers: what metadata.total_size states.
  uint64_t total_bytes() const { return total_bytes_; }
  std::filesystem::path directory() const { return directory_; }
  size_t num_files() const { return files_.size(); }
  const std::filesystem::path& file_path(int file) const;
  void Advise(const TensorRef& tensor, AccessPattern pattern) const;

 private:
  std::vector<SafetensorsFile> files_;
  std::vector<TensorRef> tensors_;
  std::filesystem::path directory_;
  uint64_t total_bytes_ = 0;
};

}  // namespace senko::checkpoint
