// Which table rows a position reads (model.md 3.7): n-gram hashes of compressed token ids in 64-bit integers.
#pragma once

#include <cstdint>
#include <vector>

#include "config/engram_hash.h"
#include "config/model_config.h"
#include "engram/token_map.h"

namespace senko::engram {

// Immutable; safe from any thread. A pure function of the token ids, so nothing of it is state of a sequence.
class Hasher {
 public:
  // Errors: as TokenMap; kInvalidArgument when the pad token is not in the vocabulary.
  Hasher(const config::ModelConfig& config, std::vector<int32_t> token_map);

  int64_t num_layers() const { return static_cast<int64_t>(layers_.size()); }
  // Rows that a position reads per layer: (max_ngram - 1) * num_heads.
  int64_t slots() const { return slots_; }

  // What the hash is made of, for backends that compute it themselves.
  const std::vector<config::EngramLayerHash>& layers() const { return layers_; }
  const TokenMap& token_map() const { return token_map_; }
  int32_t pad() const { return pad_; }  // compressed

  // out[slots()]: row indices of the table of Engram layer `layer` (0 .. num_layers() - 1) for absolute
  // position `position`, n-gram size major, then head; each in [0, that table's rows). `tokens` holds the ids
  // of positions first .. position; up to max_ngram - 1 ids before `position` are read. From the first position
  // before the sequence, or image token, going back, all further ones count as the pad token. Errors:
  // kInvalidArgument naming the position of an id outside the vocabulary.
  void Rows(int64_t layer, const int32_t* tokens, int64_t first, int64_t position, int64_t* out) const;

 private:
  TokenMap token_map_;
  std::vector<config::EngramLayerHash> layers_;
  int64_t max_ngram_;
  int64_t num_heads_;
  int64_t slots_;
  int32_t image_token_;  // -1: none
  int32_t pad_ = 0;      // compressed
};

}  // namespace senko::engram
