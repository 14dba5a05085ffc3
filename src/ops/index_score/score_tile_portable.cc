#include <cmath>

#include "numerics/ue8m0.h"
#include "ops/index_score/score_tile.h"

namespace senko::ops {
namespace {

void Expand(const uint8_t* packed, int8_t* values) {
  for (int64_t quad = 0; quad < kScoreBlock / 8; ++quad) {
    for (int64_t j = 0; j < 4; ++j) {
      const uint8_t byte = packed[quad * 4 + j];
      values[quad * 8 + j] = kHalfUnits[byte & 0xF];
      values[quad * 8 + 4 + j] = kHalfUnits[byte >> 4];
    }
  }
}

void Prepare(const uint8_t* q_values, const uint8_t* q_scales, const ScoreQuery& query) {
  for (int64_t i = 0; i < query.heads * query.blocks; ++i) {
    int8_t* values = query.values + i * kScoreBlock;
    Expand(q_values + i * (kScoreBlock / 2), values);
    int sum = 0;
    for (int64_t j = 0; j < kScoreBlock; ++j) sum += values[j];
    query.bias[i] = -kKeyOffset * sum;
    query.scales[i] = numerics::Ue8m0ToFloat(q_scales[i]) * 0.25f;
  }
}

void Tile(const ScoreQuery& query, const KeyRef* keys, uint8_t* scratch, float* out) {
  int8_t* key = reinterpret_cast<int8_t*>(scratch);
  for (int64_t k = 0; k < kTileKeys; ++k) {
    for (int64_t b = 0; b < query.blocks; ++b) Expand(keys[k].values + b * (kScoreBlock / 2), key + b * kScoreBlock);
    float score = 0;
    for (int64_t h = 0; h < query.heads; ++h) {
      float dot = 0;
      for (int64_t b = 0; b < query.blocks; ++b) {
        const int8_t* q = query.values + (h * query.blocks + b) * kScoreBlock;
        int units = 0;
        for (int64_t j = 0; j < kScoreBlock; ++j) units += q[j] * key[b * kScoreBlock + j];
        const float scale = query.scales[h * query.blocks + b] * numerics::Ue8m0ToFloat(keys[k].scales[b]);
        dot = std::fma(static_cast<float>(units), scale, dot);
      }
      score = std::fma(query.weights[h], dot < 0 ? 0.0f : dot, score);
    }
    out[k] = score;
  }
}

}  // namespace

ScoreKernel PortableScoreKernel() { return {Prepare, Tile}; }

}  // namespace senko::ops
