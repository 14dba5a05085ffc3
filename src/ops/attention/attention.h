// Attention over {window rows, selected entries} with a sink, rotary in and out fused (model.md 3.4, 11.3).
//
// All heads share one latent (K = V). Keys are taken in canonical order: window rows by position, then
// selected entries by index, in blocks of kKeyBlock counted within each of the two lists; block partials
// merge in that order, so a row's result depends on nothing but its own keys. Weights are taken against the
// final maximum, in the reference and on the CPU alike.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "ops/rows.h"

namespace senko::ops {

inline constexpr int64_t kKeyBlock = 128;

struct AttentionParams {
  RowBatch rows;
  int64_t heads = 0;
  int64_t dim = 0;
  int64_t rope_dim = 0;
  const float* q = nullptr;     // [num_rows, heads, dim], not yet rotated
  const float* rope = nullptr;  // [num_rows, rope_dim / 2, 2]
  const float* sink = nullptr;  // [heads]
  float scale = 0;              // dim^-0.5
  bool round_bf16 = false;      // q after RoPE, p before PV, o before and after the inverse RoPE
  WindowView window;
  // Selected entries, ascending, [num_rows, selected_stride]; null: a window-only layer.
  const int32_t* selected = nullptr;
  const int32_t* selected_count = nullptr;  // [num_rows]
  int64_t selected_stride = 0;
  EntryView entries;
  float* out = nullptr;  // [num_rows, heads, dim], inverse-rotated
};

void AttentionReference(const AttentionParams& p, ThreadPool& pool);
void AttentionCpu(const AttentionParams& p, ThreadPool& pool);

}  // namespace senko::ops
