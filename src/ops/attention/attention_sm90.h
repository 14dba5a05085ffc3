// Attention on Hopper over the same packed rows (attention.h), bf16 queries and outputs.
//
// Canonical arithmetic: keys are taken in blocks of kAttentionBlock, counted within the window and within the selected
// entries. A block has its own maximum, its weights are rounded to bf16 against that, their products with the values
// are summed from zero on the tensor cores; blocks are put together in order, in float32. So a row's bits depend on its
// keys only, whether one block of threads takes them all or each takes one.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/rows.h"

namespace senko::ops {

inline constexpr int64_t kAttentionBlock = 64;

// All but queries and outputs.
struct AttentionRowsSm90 {
  const int32_t* num_rows = nullptr;  // device
  int64_t max_rows = 0;
  RowBatch rows;  // device pointers; its num_rows is not read
  int64_t heads = 0;
  int64_t dim = 0;
  int64_t rope_dim = 0;
  int64_t max_window = 0;       // no row has more window rows, which the caller sees to
  const float* rope = nullptr;  // [rows, rope_dim / 2, 2]
  const float* sink = nullptr;  // [heads]
  float scale = 0;
  WindowView window;
  const int32_t* selected = nullptr;        // [rows, selected_stride] ascending; null: a window-only layer
  const int32_t* selected_count = nullptr;  // [rows]
  int64_t selected_stride = 0;
  EntryView entries;
};

template <typename Value>
struct BasicAttentionSm90Params : AttentionRowsSm90 {
  const Value* q = nullptr;  // [rows, heads, dim], not yet rotated
  Value* out = nullptr;      // [rows, heads, dim], rotated back
};
using AttentionSm90Params = BasicAttentionSm90Params<__nv_bfloat16>;

// heads at most 64; dim 512 on the tensor cores, other dims (small models) on a plain kernel. One launch. Few rows (by
// max_rows) have their keys split over clusters of blocks of threads.
void AttentionSm90(const AttentionSm90Params& p, cudaStream_t stream);
// Without rounding points, whatever the dims: the plain kernel.
void AttentionSm90(const BasicAttentionSm90Params<float>& p, cudaStream_t stream);
// The one of many rows, whatever their number: the same bits.
void AttentionWholeSm90(const AttentionSm90Params& p, cudaStream_t stream);

}  // namespace senko::ops
