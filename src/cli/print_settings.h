// What a server was started with, and where each value comes from.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "cli/serve_options.h"

namespace senko::cli {

// Every setting of `command`, which has been parsed into `options`, in a line per origin: the command line, a flag that
// stands for others, defaults. Of secrets only the number is told.
std::vector<std::string> SettingLines(const CLI::App& command, const ServeOptions& options);

}  // namespace senko::cli
