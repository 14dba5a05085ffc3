// `senko inspect`: what a configuration or a checkpoint holds and what a sequence costs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <ostream>

#include "base/json.h"
#include "base/progress.h"
#include "config/model_config.h"

namespace senko::checkpoint {

struct InspectOptions {
  std::filesystem::path model;   // a checkpoint to open and validate; empty: only `config` is read
  std::filesystem::path config;  // config.json; empty: the one in `model`
  bool json = false;
  bool scan = false;  // also read every weight (needs `model`)
  int64_t block_size = 128;
  int threads = 0;  // of the scan; 0: all CPUs of this process
};

// Prints the report; with `model` everything wrong with the checkpoint is one error instead.
// Errors: kInvalidArgument (flags), and those of LoadModelConfig, Checkpoint::Open, ValidateCheckpoint,
// ScanValues.
void Inspect(const InspectOptions& options, std::ostream& out, const ProgressSink& progress);

// The report of a configuration with the keys of architecture.md section 6. Layers without a source have null
// there.
Json ConfigReport(const config::ModelConfig& config, int64_t block_size);

// The same for people.
void PrintReport(const Json& report, std::ostream& out);

}  // namespace senko::checkpoint
