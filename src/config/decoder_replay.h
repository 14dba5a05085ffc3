// How a prompt's rows before its last `window` positions treat the decoder pass (architecture.md section 3).
#pragma once

#include <cstdint>
#include <string_view>

#include "config/model_config.h"

namespace senko::config {

enum class DecoderReplay {
  kTrim,  // skip it
  kHalo,  // run the dependency halo: the last row, and every row after the prompt, come out as with kFull
  kFull,  // run every row
};

// "trim", "halo" or "full". Errors: kInvalidArgument naming --decoder-replay.
DecoderReplay ParseDecoderReplay(std::string_view name);

// First position of a prompt whose row runs the decoder pass. Every layer after the last KV source but the last one
// widens what the windows of later rows depend on by window - 1 rows (model.md 5.2: 2,414 rows for the released model).
int64_t FirstKeptRow(const ModelConfig& config, int64_t prompt_tokens, DecoderReplay replay);

}  // namespace senko::config
