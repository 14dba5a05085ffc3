// The rules between settings (model.md 11.11 and the "constraints to keep" of model.md 9).
#pragma once

#include "config/config_values.h"
#include "config/model_config.h"

namespace senko::config {

// Adds one violation per broken rule. Every number already lies in its own range, or `values` holds a
// violation.
void CheckRules(const ModelConfig& config, ConfigValues* values);

}  // namespace senko::config
