// Token id -> compressed id, the alphabet of Engram's hash (model.md 3.7, 11.12).
#pragma once

#include <cstdint>
#include <vector>

#include "config/model_config.h"

namespace senko::engram {

// Immutable.
class TokenMap {
 public:
  // `ids` has one compressed id per token id, in [0, compressed_vocab_size), for 0 .. vocab_size - 1.
  // Errors: kInvalidArgument naming the length or the first token whose compressed id does not fit.
  TokenMap(std::vector<int32_t> ids, const config::ModelConfig& config);

  // token in [0, size()).
  int32_t operator[](int32_t token) const { return ids_[static_cast<size_t>(token)]; }
  int64_t size() const { return static_cast<int64_t>(ids_.size()); }

 private:
  std::vector<int32_t> ids_;
};

}  // namespace senko::engram
