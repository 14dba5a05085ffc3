// The flags of `senko serve`.
#pragma once

#include <CLI/App.hpp>

#include "cli/serve_options.h"

namespace senko::cli {

void AddServeFlags(CLI::App& command, ServeOptions& options);

}  // namespace senko::cli
