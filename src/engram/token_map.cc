#include "engram/token_map.h"

#include <string>
#include <utility>

#include "base/error.h"

namespace senko::engram {

TokenMap::TokenMap(std::vector<int32_t> ids, const config::ModelConfig& config) : ids_(std::move(ids)) {
  if (size() != config.vocab_size) {
    throw Error(ErrorCode::kInvalidArgument,
                "Engram token map: has " + std::to_string(size()) + " entries, the configuration's vocab_size is " +
                    std::to_string(config.vocab_size) + "; use the map made from this model's tokenizer");
  }
  for (size_t token = 0; token < ids_.size(); ++token) {
    if (ids_[token] >= 0 && ids_[token] < config.engram.compressed_vocab_size) continue;
    throw Error(ErrorCode::kInvalidArgument, "Engram token map: token " + std::to_string(token) +
                                                 " has compressed id " + std::to_string(ids_[token]) +
                                                 ", outside [0, engram_compressed_vocab_size = " +
                                                 std::to_string(config.engram.compressed_vocab_size) + ")");
  }
}

}  // namespace senko::engram
