// model.safetensors.index.json: which shard holds which tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace senko::checkpoint {

struct ShardIndex {
  std::vector<std::pair<std::string, std::string>> weight_map;  // tensor name, file name; ascending by tensor
  std::optional<uint64_t> total_size;                           // metadata.total_size
};

inline constexpr char kIndexName[] = "model.safetensors.index.json";
inline constexpr size_t kMaxIndexBytes = size_t{256} << 20;

// Errors: kCorrupt (not JSON, no weight_map, a tensor listed twice, a file name that leaves the folder).
ShardIndex ParseShardIndex(std::string_view json, std::string_view source);

// `weight_map` in any order. Written through a temporary file beside the target.
void WriteShardIndex(const std::filesystem::path& path, const ShardIndex& index);

}  // namespace senko::checkpoint
