// Drawing a token from one row of logits. A pure function of (logits, params, seed, choice, position).
#pragma once

#include <cstdint>

namespace senko::ops {

inline constexpr float kGreedyTemperature = 1e-5f;
inline constexpr int64_t kMaxVocab = int64_t{1} << 19;  // so that a sum of weights stays below 2^63

// What a draw returns instead of a token id. That request fails, nobody else.
inline constexpr int64_t kRowNotFinite = -1;
inline constexpr int64_t kNothingAllowed = -2;

struct SampleParams {
  int64_t vocab = 0;
  const float* logits = nullptr;  // [vocab], finite but for what `banned` counts
  float temperature = 0;          // below kGreedyTemperature: argmax, ties to the lower id; may be infinite
  int64_t top_k = 0;              // 0: off; ties to the lower id
  float top_p = 1;                // 1: off; the smallest set of the likeliest whose mass reaches top_p, one at least
  float min_p = 0;                // 0: off; relative to the most likely token
  uint64_t seed = 0;
  uint64_t choice = 0;    // n > 1: which of them
  uint64_t position = 0;  // of the token being drawn
  int64_t banned = 0;     // logits that are -infinity because nobody may draw them (processors.h)
};

// min_p applies first, then top_k, then top_p to the mass that is left. The arithmetic is
// sample/draw_scheme.h's, in integers, so every backend draws the same id. vocab is 1 .. kMaxVocab. Returns the
// token id; kRowNotFinite when a logit is NaN or infinite beyond the banned ones; kNothingAllowed when all are banned.
// SampleCpu allocates nothing once its thread has drawn from as large a row.
int64_t SampleReference(const SampleParams& p);
int64_t SampleCpu(const SampleParams& p);

}  // namespace senko::ops
