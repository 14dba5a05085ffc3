// Reading (by mapping) and writing (streamed) single safetensors files.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "checkpoint/safetensors_header.h"
#include "tensor/dtype.h"

namespace senko::checkpoint {

// A tensor inside a mapped file. The bytes live as long as the file object that gave the reference. They may
// be less aligned than the dtype asks for: files written by others promise nothing.
struct TensorRef {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
  int file = 0;  // index into Checkpoint::files(); 0 for a single file
};

// One mapped file. Move-only.
class SafetensorsFile {
 public:
  // Errors: kNotFound, kIo; kCorrupt listing every fault of the file.
  static SafetensorsFile Open(const std::filesystem::path& path);
  // The same, but faults of single tensors are added to `problems`; a header that cannot be read still
  // throws.
  static SafetensorsFile Open(const std::filesystem::path& path, ProblemList* problems);

  const SafetensorsHeader& header() const { return header_; }
  const MappedFile& mapping() const { return mapping_; }
  // Error kNotFound names the file and the tensor.
  TensorRef Tensor(std::string_view name) const;
  // Empty when the entry lies outside the file (a fault already reported).
  std::span<const std::byte> Bytes(const HeaderEntry& entry) const;

 private:
  MappedFile mapping_;
  SafetensorsHeader header_;
};

struct TensorSpec {
  std::string name;  // printable ASCII or UTF-8
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
};

// Writes a file whose shapes are known beforehand and whose data come in any order, from any thread. The data
// section starts on a 64-byte boundary; tensors with wider elements come first, so every tensor is aligned to
// its element. Output is written beside the target and moved there by Finish; without Finish nothing remains.
class SafetensorsWriter {
 public:
  // Errors: kInvalidArgument (the target exists and is not a regular file), kIo, kResourceExhausted (disk
  // full). Duplicate names are our own fault.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorSpec> specs,
                    const std::map<std::string, std::string>& metadata = {});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // Writes `bytes` at `offset` inside tensor `index` of the constructor's list. Thread-safe; each byte once.
  void Write(size_t index, uint64_t offset, std::span<const std::byte> bytes);
  template <typename T>
  void WriteAll(size_t index, std::span<const T> values) {
    Write(index, 0, std::as_bytes(values));
  }
  // Leaves a whole tensor as a hole in the file: it reads as zeros and takes no disk.
  void LeaveZero(size_t index);
  // Every byte must have been written or left zero.
  void Finish();

  uint64_t tensor_bytes(size_t index) const { return sizes_[index]; }
  uint64_t data_bytes() const { return data_bytes_; }

 private:
  std::filesystem::path path_, partial_;
  std::vector<uint64_t> offsets_, sizes_;  // file offset and bytes of each tensor, in the constructor's order
  uint64_t data_bytes_ = 0;
  std::atomic<uint64_t> written_{0};
  int descriptor_ = -1;
};

}  // namespace senko::checkpoint
