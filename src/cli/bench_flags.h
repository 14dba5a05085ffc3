// The flags of `senko bench` and `senko profile`.
#pragma once

#include <CLI/App.hpp>

#include "cli/bench_options.h"

namespace senko::cli {

// Adds the subcommands; the one that is given sets options.chosen.
void AddBenchFlags(CLI::App& bench, BenchOptions& options);
void AddProfileFlags(CLI::App& profile, BenchOptions& options);

}  // namespace senko::cli
