// Drawing a token from one row of logits. A pure function of (logits, params, seed, choice, position).
#pragma once

#include <cstdint>

namespace senko::ops {

struct SampleParams {
  int64_t vocab = 0;
  const float* logits = nullptr;  // [vocab], finite
  float temperature = 0;          // 0: argmax, ties to the lower id
  int64_t top_k = 0;              // 0: off
  float top_p = 1;                // 1: off; the smallest set whose mass reaches top_p
  float min_p = 0;                // 0: off; relative to the most likely token
  uint64_t seed = 0;
  uint64_t choice = 0;    // n > 1: which of them
  uint64_t position = 0;  // of the token being drawn
};

// Returns the token id, or -1 when a logit is NaN or infinite (that request fails, nobody else).
int64_t SampleReference(const SampleParams& p);
int64_t SampleCpu(const SampleParams& p);

}  // namespace senko::ops
