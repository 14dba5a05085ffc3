// Any bytes taken as a safetensors file or as a shard index either parse into entries that lie inside the
// file, or give a senko::Error.
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/shard_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace senko::checkpoint;
  try {
    ProblemList problems;
    const auto bytes = std::as_bytes(std::span(data, size));
    const SafetensorsHeader header = ParseSafetensorsHeader(bytes, "fuzz", &problems);
    if (problems.empty()) {
      uint64_t position = 0;
      for (const HeaderEntry& entry : header.entries) {
        if (entry.begin != position || entry.end > size - header.data_offset) __builtin_trap();
        if (TensorBytes(entry.dtype, entry.shape) != static_cast<int64_t>(entry.end - entry.begin)) __builtin_trap();
        position = entry.end;
      }
      if (position != size - header.data_offset) __builtin_trap();
    } else if (problems.Describe("fuzz", "broken").size() > 200000) {
      __builtin_trap();
    }
  } catch (const senko::Error&) {
  }
  try {
    ParseShardIndex(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
  } catch (const senko::Error&) {
  }
  return 0;
}
