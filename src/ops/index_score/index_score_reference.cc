// The truth for index queries and scores: plain loops in the order the contract states.
#include <cmath>
#include <vector>

#include "base/check.h"
#include "numerics/bf16.h"
#include "numerics/quantise.h"
#include "ops/index_score/index_score.h"
#include "ops/norm/rope_reference.h"

namespace senko::ops {
namespace {

using numerics::kFp4Block;

// e2m1 in units of 1/2: an exact small integer.
int HalfUnits(uint8_t code) {
  static constexpr int kMagnitude[8] = {0, 1, 2, 3, 4, 6, 8, 12};
  return (code & 8u) != 0 ? -kMagnitude[code & 7u] : kMagnitude[code & 7u];
}

int Nibble(const uint8_t* packed, int64_t i) { return HalfUnits((packed[i / 2] >> (i % 2 * 4)) & 0xF); }

float Score(const IndexScoreParams& p, int64_t row, int64_t entry) {
  const SequenceKv& sequence = p.rows.sequence_kv[p.rows.sequences[row]];
  const uint8_t* key = p.entries.KeyValues(sequence, entry);
  const uint8_t* key_scales = p.entries.KeyScales(sequence, entry);
  const int64_t blocks = p.dim / kFp4Block;
  float score = 0;
  for (int64_t h = 0; h < p.heads; ++h) {
    const uint8_t* query = p.q_values + (row * p.heads + h) * (p.dim / 2);
    const uint8_t* query_scales = p.q_scales + (row * p.heads + h) * blocks;
    float dot = 0;
    for (int64_t b = 0; b < blocks; ++b) {
      int units = 0;
      for (int64_t i = b * kFp4Block; i < (b + 1) * kFp4Block; ++i) units += Nibble(query, i) * Nibble(key, i);
      const float scale = numerics::Ue8m0ToFloat(query_scales[b]) * 0.25f * numerics::Ue8m0ToFloat(key_scales[b]);
      dot = std::fma(static_cast<float>(units), scale, dot);
    }
    const float rectified = dot < 0 ? 0.0f : dot;
    score = std::fma(p.weights[row * p.heads + h], rectified, score);
  }
  return score;
}

}  // namespace

void IndexQueryReference(const IndexQueryParams& p, ThreadPool&) {
  SENKO_CHECK(p.dim % kFp4Block == 0 && p.rope_dim <= p.dim && p.rope_dim % 2 == 0);
  std::vector<float> head(static_cast<size_t>(p.dim));
  for (int64_t i = 0; i < p.rows * p.heads; ++i) {
    const int64_t row = i / p.heads;
    for (int64_t d = 0; d < p.dim; ++d) {
      const float q = p.q[i * p.dim + d];
      head[static_cast<size_t>(d)] = p.round_bf16 ? numerics::RoundToBf16(q) : q;
    }
    RopeRotateReference(head.data() + (p.dim - p.rope_dim), p.rope + row * p.rope_dim, p.rope_dim / 2,
                        /*inverse=*/false, p.round_bf16);
    for (int64_t b = 0; b < p.dim / kFp4Block; ++b) {
      numerics::QuantiseFp4(head.data() + b * kFp4Block, p.values + (i * p.dim + b * kFp4Block) / 2,
                            p.scales + i * (p.dim / kFp4Block) + b);
    }
  }
}

void IndexScoreReference(const IndexScoreParams& p, int64_t row, int64_t begin, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = Score(p, row, begin + i);
}

void IndexScoreListReference(const IndexScoreParams& p, int64_t row, const int32_t* list, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = Score(p, row, list[i]);
}

}  // namespace senko::ops
