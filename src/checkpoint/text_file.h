// Writing small files whole.
#pragma once

#include <filesystem>
#include <string_view>

namespace senko::checkpoint {

// Replaces `path` by `text` through a temporary file beside it. Errors: kIo.
void WriteTextFile(const std::filesystem::path& path, std::string_view text);

}  // namespace senko::checkpoint
