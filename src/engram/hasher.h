// Which Engram table rows a token reads (model.md 3.7): a hash of its last n-grams' compressed ids.
#pragma once

#include <cstdint>
#include <vector>

#include "config/engram_hash.h"
#include "config/model_config.h"

namespace senko::engram {

// Immutable; any thread.
class Hasher {
 public:
  // token_map: token id -> compressed id, [vocab_size]. Errors: kInvalidArgument when its length or a value does not fit
  // the configuration.
  Hasher(const config::ModelConfig& config, std::vector<int32_t> token_map);

  // Table rows per token: (max_ngram - 1) * heads, n-gram size major.
  int64_t slots() const { return slots_; }

  // Rows of the `engram_slot`-th Engram layer for the token at `position`; `tokens` are the sequence's ids from position
  // 0 on, so the look-back needs no state. An image token, and everything before it, reads as padding.
  void Rows(int engram_slot, const int32_t* tokens, int64_t position, int64_t* rows) const;

 private:
  std::vector<config::EngramLayerHash> layers_;
  std::vector<int32_t> token_map_;
  int64_t slots_ = 0;
  int64_t heads_ = 0;
  int64_t max_ngram_ = 0;
  int64_t image_token_ = -1;
  uint64_t pad_ = 0;  // compressed id of engram_pad_token_id
};

}  // namespace senko::engram
