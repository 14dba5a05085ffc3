// Token ids from outside: "1,2,3" and {"prompts": [[ids], ...]}.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace senko::cli {

// Errors: kInvalidArgument naming what is not an id in [0, vocab).
std::vector<int32_t> ParseTokenList(std::string_view text, int64_t vocab);

// Errors: kCorrupt, kInvalidArgument naming the file, prompt and position.
std::vector<std::vector<int32_t>> ReadTokenFile(const std::filesystem::path& path, int64_t vocab);

}  // namespace senko::cli
