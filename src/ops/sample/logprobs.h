// The log-probabilities of a row of logits as they are before temperature, penalties and cuts.
#pragma once

#include <cstdint>
#include <span>

namespace senko::ops {

inline constexpr int64_t kMaxTopLogprobs = 20;

struct LogprobEntry {
  int32_t token = -1;
  float logprob = 0;  // natural logarithm, at least the lowest float
  int64_t rank = 0;   // 1: the most likely; of equal logits the lower id comes first, as in a draw
};

struct LogprobParams {
  int64_t vocab = 0;              // 1 .. kMaxVocab
  const float* logits = nullptr;  // [vocab]
  int32_t token = 0;              // whose log-probability is wanted
  LogprobEntry* entry = nullptr;  // [1], the token's
  std::span<LogprobEntry> top;    // the most likely, by rank; at most vocab and kMaxTopLogprobs
};

// False when a logit is NaN or infinite: nothing is written. A row's result is the same bits whatever runs beside it.
// LogprobsCpu sums draw_scheme.h's integer weights, whose order is free: below the maximum's 1 they are rounded to
// 2^-44 each, which is within 2^-45 * vocab of the exact sum, and tokens 32 nats and more below the top are left out.
bool LogprobsReference(const LogprobParams& p);
bool LogprobsCpu(const LogprobParams& p);

}  // namespace senko::ops
