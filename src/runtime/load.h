// From a checkpoint directory to a model ready to run.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/model.h"
#include "numerics/numerics_mode.h"
#include "runtime/profile.h"
#include "text/tokenizer.h"

namespace senko::runtime {

struct LoadOptions {
  std::filesystem::path directory;
  numerics::NumericsMode numerics = numerics::NumericsMode::kModel;
  std::vector<std::string> op_impl;  // "attention=reference"
  int64_t block_size = 128;
  std::string load_format = "auto";  // "dummy": no checkpoint is read, weights are random
  int64_t verify_rows = 1;           // most rows of a sequence in a decode step; 1: nothing is drafted
  Profile* profile = nullptr;        // clocks every operator; outlives the model
};

// Owns the mapping and everything that points into it.
struct LoadedModel {
  std::filesystem::path directory;
  config::ModelConfig config;
  std::unique_ptr<checkpoint::Checkpoint> checkpoint;  // null with random weights
  std::unique_ptr<model::Model> model;
};

// Reads the configuration, checks the checkpoint against it, takes the Engram token map from engram_map.json or derives
// it from tokenizer.json, and binds the weights. Nothing large is allocated. Errors: senko::Error naming file and
// tensor or field.
LoadedModel LoadModel(const LoadOptions& options);

// "float", "model" or "model-noaq". Errors: kInvalidArgument.
numerics::NumericsMode ParseNumericsMode(const std::string& name);

}  // namespace senko::runtime
