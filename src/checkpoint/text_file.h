// Writing small files whole, and what a written file may replace.
#pragma once

#include <filesystem>
#include <string_view>

namespace senko::checkpoint {

// A file written beside its target and moved there would put itself in the place of a device, a pipe or a
// link. Error kInvalidArgument when `path` exists and is not a regular file (links are not followed).
void CheckReplaceable(const std::filesystem::path& path);

// Replaces `path` by `text` through a temporary file beside it; on failure nothing of it remains.
// Errors: kIo, kResourceExhausted (disk full); as CheckReplaceable.
void WriteTextFile(const std::filesystem::path& path, std::string_view text);

}  // namespace senko::checkpoint
