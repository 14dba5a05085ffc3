#include "engram/hasher.h"

#include <string>
#include <utility>

#include "base/error.h"

namespace senko::engram {

Hasher::Hasher(const config::ModelConfig& config, std::vector<int32_t> token_map)
    : layers_(config::MakeEngramHash(config.engram)),
      token_map_(std::move(token_map)),
      slots_((config.engram.max_ngram - 1) * config.engram.num_heads),
      heads_(config.engram.num_heads),
      max_ngram_(config.engram.max_ngram),
      image_token_(config.image_token_id) {
  if (static_cast<int64_t>(token_map_.size()) != config.vocab_size) {
    throw Error(ErrorCode::kInvalidArgument, "Engram token map: " + std::to_string(token_map_.size()) +
                                                 " entries for a vocabulary of " + std::to_string(config.vocab_size));
  }
  for (size_t id = 0; id < token_map_.size(); ++id) {
    if (token_map_[id] < 0 || token_map_[id] >= config.engram.compressed_vocab_size) {
      throw Error(ErrorCode::kInvalidArgument,
                  "Engram token map: token " + std::to_string(id) + " maps to " + std::to_string(token_map_[id]) +
                      ", outside [0, " + std::to_string(config.engram.compressed_vocab_size) + ")");
    }
  }
  pad_ = static_cast<uint64_t>(token_map_[static_cast<size_t>(config.engram.pad_token_id)]);
}

void Hasher::Rows(int engram_slot, const int32_t* tokens, int64_t position, int64_t* rows) const {
  const config::EngramLayerHash& layer = layers_[static_cast<size_t>(engram_slot)];
  uint64_t hash = 0;
  bool blocked = false;
  for (int64_t back = 0; back < max_ngram_; ++back) {
    blocked = blocked || position - back < 0 || tokens[position - back] == image_token_;
    const uint64_t id =
        blocked ? pad_ : static_cast<uint64_t>(token_map_[static_cast<size_t>(tokens[position - back])]);
    hash ^= id * layer.multipliers[static_cast<size_t>(back)];
    if (back == 0) continue;
    for (int64_t head = 0; head < heads_; ++head) {
      const size_t k = static_cast<size_t>((back - 1) * heads_ + head);
      rows[k] = static_cast<int64_t>(hash % static_cast<uint64_t>(layer.primes[k])) + layer.offsets[k];
    }
  }
}

}  // namespace senko::engram
