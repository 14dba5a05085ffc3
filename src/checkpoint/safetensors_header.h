// The header of a safetensors file: 8 bytes of little-endian length, JSON, then the data section.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/problem_list.h"
#include "tensor/dtype.h"

namespace senko::checkpoint {

// One tensor as the header describes it. Offsets are bytes from the start of the data section.
struct HeaderEntry {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<HeaderEntry> entries;  // ascending by begin
  std::vector<std::pair<std::string, std::string>> metadata;
  uint64_t data_offset = 0;  // of the data section, from the start of the file
};

inline constexpr uint64_t kMaxHeaderBytes = uint64_t{100} << 20;

// Parses the header of a whole file's bytes. `source` names the file in messages.
// Throws kCorrupt where nothing more can be read (length, JSON syntax, depth). Faults of single tensors
// (dtype, shape, offsets, overlaps, holes, truncation, trailing bytes) go to `problems`, and such tensors are
// left out.
SafetensorsHeader ParseSafetensorsHeader(std::span<const std::byte> file, std::string_view source,
                                         ProblemList* problems);

// Bytes of a tensor of this type and shape; -1 when a dimension is negative or the product leaves int64.
int64_t TensorBytes(DType dtype, std::span<const int64_t> shape);

}  // namespace senko::checkpoint
