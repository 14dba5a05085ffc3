// Compares a checkpoint with what its configuration asks for.
#pragma once

#include "checkpoint/checkpoint.h"
#include "checkpoint/inventory.h"
#include "config/model_config.h"

namespace senko::checkpoint {

// Lists all missing, unexpected, mis-shaped and mis-typed tensors in one kCorrupt error (the first 50 of each
// kind and their number). Touches headers only.
void ValidateCheckpoint(const Checkpoint& checkpoint, const std::vector<ExpectedTensor>& expected);
void ValidateCheckpoint(const Checkpoint& checkpoint, const config::ModelConfig& config);

}  // namespace senko::checkpoint
