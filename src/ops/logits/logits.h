// The head (model.md 3.1): float32 logits from bf16 weights.
#pragma once

#include "ops/linear/linear.h"

namespace senko::ops {

struct LogitsParams {
  int64_t rows = 0;
  const float* x = nullptr;  // [rows, hidden], after the final norm
  WeightView head;           // bf16 [vocab, hidden]
  float* logits = nullptr;   // [rows, vocab]
};
void LogitsReference(const LogitsParams& p, ThreadPool& pool);
// Returns through `finite` [rows] (may be null) whether a row holds no NaN or infinity.
void LogitsCpu(const LogitsParams& p, uint8_t* finite, ThreadPool& pool);

}  // namespace senko::ops
