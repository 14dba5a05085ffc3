// `senko make-model`: writes a checkpoint of any size in the released formats.
#pragma once

#include <cstdint>
#include <filesystem>
#include <ostream>
#include <vector>

#include "base/progress.h"
#include "config/model_config.h"

namespace senko::checkpoint {

struct MakeModelOptions {
  std::filesystem::path config;  // config.json, or a folder that holds one
  std::filesystem::path out;     // made if absent; must hold no file of a model
  uint64_t seed = 0;
  uint64_t max_shard_bytes = 0;  // 0: one file
  bool sparse_engram = false;    // leave the Engram tables as holes (zeros)
  std::filesystem::path parrot;  // a script (README.md, "parrot"); empty: random weights
  int threads = 0;               // 0: all CPUs of this process
};

// Writes the weights, config.json (a copy), engram_map.json when the model has Engram, and
// tokenizer.json (a parrot's own, else a copy of the one beside the configuration, if any); prints a summary
// to `out`. On failure every file and folder it made is removed. The files
// depend on the configuration, the seed and the script alone. Errors: as LoadModelConfig;
// kInvalidArgument (the folder holds a model, a bad script); kResourceExhausted; kIo.
void MakeModel(const MakeModelOptions& options, std::ostream& out, const ProgressSink& progress);

// A map of token ids onto all of [0, compressed): random, but with map[pad] != pad where that is possible, so
// that a reader that forgets the map is caught.
std::vector<int64_t> RandomEngramMap(const config::ModelConfig& config, uint64_t seed);

}  // namespace senko::checkpoint
