// RMSNorm with one final rounding (model.md 3.0), and the rotary table of a step's rows (3.3, 11.2).
#pragma once

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"

namespace senko::ops {

struct RmsNormParams {
  int64_t rows = 0;
  int64_t cols = 0;
  const float* x = nullptr;       // [rows, cols]
  const float* weight = nullptr;  // [cols]
  float eps = 0;
  float* y = nullptr;  // [rows, cols]; may be x
  bool round_bf16 = false;
};

// The fast sum of squares is canonical: 64 lanes by column mod 64 within chunks of 1024 (four F32x16
// accumulators, added pairwise, then ReduceSum's tree), the chunks added in order.
void RmsNormReference(const RmsNormParams& p, ThreadPool& pool);
void RmsNormCpu(const RmsNormParams& p, ThreadPool& pool);

// inv_freq of rotary pairs 0 .. rope_dim/2 - 1, float32 by the recipe of model.md 11.2.
// original_max_positions == 0 means plain RoPE, otherwise YaRN with the given factor and betas.
struct RopeSpec {
  int64_t rope_dim = 0;
  double base = 0;
  double factor = 1;
  double beta_fast = 32;
  double beta_slow = 1;
  int64_t original_max_positions = 0;
};
std::vector<float> RopeInvFreq(const RopeSpec& spec);

// table[row][pair] = {cos, sin} of float32(position * inv_freq), each correctly rounded. [rows, pairs, 2].
void RopeTable(const int64_t* positions, int64_t rows, const float* inv_freq, int64_t pairs, float* table);

// Rotates the interleaved pairs (2n, 2n+1) of x[pairs * 2] in place by a row of the table; inverse
// conjugates. Products and sums are float32 without fused multiply-add: re = a*c - b*s, im = a*s + b*c.
void RopeRotate(float* x, const float* table_row, int64_t pairs, bool inverse, bool round_bf16);

}  // namespace senko::ops
