// The flags of every command that runs a model.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>

#include "cli/commands.h"

namespace senko::cli {

inline constexpr int64_t kMaxTokens = int64_t{1} << 31, kMaxBytes = int64_t{1} << 50;

void AddRunFlags(CLI::App& app, RunOptions& options);

}  // namespace senko::cli
