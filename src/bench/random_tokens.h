// Token ids for benchmarks: random, and no image's.
#pragma once

#include <cstdint>
#include <vector>

#include "base/random.h"
#include "config/model_config.h"

namespace senko::bench {

// The first `count` of a seed's ids, appended. image_token may be -1.
inline void AppendRandomTokens(int64_t vocab_size, int64_t image_token, int64_t count, uint64_t seed,
                               std::vector<int32_t>* ids) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t word = PhiloxDraw(seed, static_cast<uint64_t>(i), 0).word[0];
    const int64_t id = word % vocab_size;
    ids->push_back(id == image_token ? 0 : static_cast<int32_t>(id));
  }
}

inline std::vector<int32_t> RandomTokens(const config::ModelConfig& config, int64_t count, uint64_t seed) {
  std::vector<int32_t> ids;
  AppendRandomTokens(config.vocab_size, config.image_token_id, count, seed, &ids);
  return ids;
}

}  // namespace senko::bench
