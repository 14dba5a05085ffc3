#include "cli/token_file.h"

#include <charconv>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"

namespace senko::cli {

std::vector<int32_t> ParseTokenList(std::string_view text, int64_t vocab) {
  std::vector<int32_t> ids;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    std::string_view item = text.substr(0, comma);
    while (!item.empty() && item.front() == ' ') item.remove_prefix(1);
    while (!item.empty() && item.back() == ' ') item.remove_suffix(1);
    int32_t id = -1;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), id);
    if (error != std::errc() || end != item.data() + item.size() || id < 0 || id >= vocab) {
      throw Error(ErrorCode::kInvalidArgument, "--token-ids: item " + std::to_string(ids.size()) + " \"" +
                                                   std::string(item.substr(0, 40)) + "\" is not an id in [0, " +
                                                   std::to_string(vocab) + ")");
    }
    ids.push_back(id);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  }
  return ids;
}

std::vector<std::vector<int32_t>> ReadTokenFile(const std::filesystem::path& path, int64_t vocab) {
  const Json json = ParseJson(ReadTextFile(path, size_t{1} << 30), path.string(), {.max_bytes = size_t{1} << 30});
  if (!json.is_object() || !json.contains("prompts") || !json["prompts"].is_array()) {
    throw Error(ErrorCode::kInvalidArgument, path.string() + ": expected {\"prompts\": [[token ids], ...]}");
  }
  std::vector<std::vector<int32_t>> prompts;
  for (const Json& list : json["prompts"]) {
    const std::string where = path.string() + ": prompts[" + std::to_string(prompts.size()) + "]";
    if (!list.is_array() || list.empty()) {
      throw Error(ErrorCode::kInvalidArgument, where + ": expected a non-empty array of token ids");
    }
    std::vector<int32_t> ids;
    for (const Json& item : list) {
      if (!item.is_number_integer() || item < 0 || item >= vocab) {
        throw Error(ErrorCode::kInvalidArgument,
                    where + "[" + std::to_string(ids.size()) + "]: not an id in [0, " + std::to_string(vocab) + ")");
      }
      ids.push_back(item.get<int32_t>());
    }
    prompts.push_back(std::move(ids));
  }
  return prompts;
}

}  // namespace senko::cli
