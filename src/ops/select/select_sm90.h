// Indexer queries, and scoring and selection in one operator, on Hopper. Scores are the CPU's bits (index_score.h says
// the arithmetic), selections the CPU's (select.h says the order), for any context, inside a fixed scratch.
//
// How a selection runs, in two launches:
//   1. Rows form units: one row where rows have few keys in common (decoding, candidates), else four or eight that
//   share
//      each expanded key. The keys of all units, laid end to end, are cut into as many equal ranges as there are blocks
//      of threads (select_plan_sm90.cuh), so one long row is everybody's work and many short ones are nobody's excess.
//      A block scores its range in steps (select_score_sm90.cuh: int8 tensor cores, exact) and keeps the best in lists
//      of ranks (order_key.h) that a threshold guards and that are cut back when they fill (select_keep_sm90.cuh).
//      Lists stay in the order of indices, so nothing is ever sorted. A unit inside one range is finished on the spot.
//   2. The pieces of a unit that crosses ranges are put together, sixteen at a time and then the results.
// Scratch holds only pieces: a block has at most two, whatever the rows and the context. Nothing scores where nothing
// is to be left out; both launches then end at once.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "ops/rows.h"

namespace senko::ops {

// rope + qdq_fp4_32 of the indexer's queries, and its head weights in float32.
template <typename Value>
struct BasicIndexQuerySm90Params {
  const int32_t* rows = nullptr;  // device
  int64_t max_rows = 0;
  int64_t heads = 0;
  int64_t dim = 0;
  int64_t rope_dim = 0;
  const Value* q = nullptr;     // [rows, heads, dim], wq_b's output
  const float* rope = nullptr;  // [rows, rope_dim / 2, 2]
  const Value* w = nullptr;     // [rows, heads], weights_proj's output
  float weight_scale = 0;       // float32(1 / sqrt(dim * heads))
  uint8_t* values = nullptr;    // [rows, heads, dim / 2]
  uint8_t* scales = nullptr;    // [rows, heads, dim / 32]
  float* weights = nullptr;     // [rows, heads] = w * weight_scale
};
using IndexQuerySm90Params = BasicIndexQuerySm90Params<__nv_bfloat16>;
void IndexQuerySm90(const IndexQuerySm90Params& p, cudaStream_t stream);
void IndexQuerySm90(const BasicIndexQuerySm90Params<float>& p, cudaStream_t stream);

// What the kernels are built for.
inline constexpr int64_t kMaxIndexHeadsSm90 = 32;
inline constexpr int64_t kMaxSelectTopkSm90 = 512;
inline constexpr int64_t kMaxCandidateBlocksSm90 = 2048;
inline constexpr int64_t kMaxSelectRowsSm90 = 16384;

struct SelectSm90Params {
  const int32_t* num_rows = nullptr;  // device
  int64_t max_rows = 0;
  RowBatch rows;  // device pointers; its num_rows is not read
  int ratio = 1;  // a row at position i sees entries [0, (i + 1) / ratio)
  int64_t heads = 0;
  int64_t dim = 0;  // 32, 64 or 128
  const uint8_t* q_values = nullptr;
  const uint8_t* q_scales = nullptr;
  const float* weights = nullptr;
  EntryView entries;  // a power of two of entries a page, 32 at least; key values 16-byte aligned
  int64_t topk = 0;
  // As in SelectParams. The size of a block divides 32.
  const int32_t* candidates = nullptr;
  const int32_t* candidate_count = nullptr;
  int32_t* candidates_out = nullptr;
  int32_t* candidate_count_out = nullptr;
  int64_t candidate_blocks = 0;
  int64_t candidate_block_size = 0;
  int64_t candidate_stride = 0;
  int32_t* selected = nullptr;  // [rows, selected_stride] ascending
  int32_t* selected_count = nullptr;
  int64_t selected_stride = 0;
  uint8_t* scratch = nullptr;  // 256-byte aligned
  size_t scratch_bytes = 0;    // at least SelectScratchBytes(...)
  // For tests: null, or where the scores that were made go, [rows, scores_stride] by entry.
  float* scores = nullptr;
  int64_t scores_stride = 0;
};
// Grows with none of its arguments but topk and candidate_blocks: pieces are as many as blocks of threads. Of this
// thread's GPU.
size_t SelectScratchBytes(int64_t max_rows, int64_t max_entries, int64_t topk, int64_t candidate_blocks);
void SelectSm90(const SelectSm90Params& p, cudaStream_t stream);

}  // namespace senko::ops
