// Where files that can be made again are kept between runs.
#pragma once

#include <filesystem>

namespace senko {

// ~/.cache/senko of the user the process runs as; empty without a home. It need not exist.
std::filesystem::path UserCacheFolder();

}  // namespace senko
