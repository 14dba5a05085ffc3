#include "config/decoder_replay.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace senko::config {

DecoderReplay ParseDecoderReplay(std::string_view name) {
  if (name == "trim") return DecoderReplay::kTrim;
  if (name == "halo") return DecoderReplay::kHalo;
  if (name == "full") return DecoderReplay::kFull;
  throw Error(ErrorCode::kInvalidArgument, "--decoder-replay " + std::string(name) + ": must be trim, halo or full");
}

int64_t FirstKeptRow(const ModelConfig& config, int64_t prompt_tokens, DecoderReplay replay) {
  // Without KV sources no layer lies before the seam, so there is nothing to trim.
  if (config.last_kv_source() < 0 || replay == DecoderReplay::kFull) return 0;
  int64_t rows = config.window;
  if (replay == DecoderReplay::kHalo) {
    const int64_t later_layers = config.num_layers - 1 - config.last_kv_source();
    rows += std::max<int64_t>(later_layers - 1, 0) * (config.window - 1);
  }
  return std::max<int64_t>(prompt_tokens - rows, 0);
}

}  // namespace senko::config
