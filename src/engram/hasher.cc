#include "engram/hasher.h"

#include <string>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace senko::engram {

Hasher::Hasher(const config::ModelConfig& config, std::vector<int32_t> token_map)
    : token_map_(std::move(token_map), config),
      layers_(config::MakeEngramHash(config.engram)),
      max_ngram_(config.engram.max_ngram),
      num_heads_(config.engram.num_heads),
      slots_((config.engram.max_ngram - 1) * config.engram.num_heads),
      image_token_(static_cast<int32_t>(config.image_token_id)) {
  const int64_t pad = config.engram.pad_token_id;
  if (pad < 0 || pad >= token_map_.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                "engram_pad_token_id " + std::to_string(pad) + " is not a token id of this vocabulary");
  }
  pad_ = token_map_[static_cast<int32_t>(pad)];
}

void Hasher::Rows(int64_t layer, const int32_t* tokens, int64_t first, int64_t position, int64_t* out) const {
  SENKO_CHECK(layer >= 0 && layer < num_layers() && position >= 0);
  const config::EngramLayerHash& hash = layers_[static_cast<size_t>(layer)];
  bool blocked = false;
  uint64_t mixed = 0;
  for (int64_t back = 0; back < max_ngram_; ++back) {
    const int64_t at = position - back;
    blocked = blocked || at < 0 || tokens[at - first] == image_token_;
    int32_t compressed = pad_;
    if (!blocked) {
      const int32_t token = tokens[at - first];
      if (token < 0 || token >= token_map_.size()) {
        throw Error(ErrorCode::kInvalidArgument, "token id " + std::to_string(token) + " at position " +
                                                     std::to_string(at) + " is outside the vocabulary of " +
                                                     std::to_string(token_map_.size()));
      }
      compressed = token_map_[token];
    }
    // No overflow: a multiplier is below 2^63 / compressed_vocab_size.
    mixed ^= static_cast<uint64_t>(compressed) * hash.multipliers[static_cast<size_t>(back)];
    if (back == 0) continue;
    for (int64_t head = 0; head < num_heads_; ++head) {
      const size_t slot = static_cast<size_t>((back - 1) * num_heads_ + head);
      out[slot] = static_cast<int64_t>(mixed % static_cast<uint64_t>(hash.primes[slot])) + hash.offsets[slot];
    }
  }
}

}  // namespace senko::engram
