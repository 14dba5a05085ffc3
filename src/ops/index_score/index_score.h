// Indexer queries and scores (model.md 3.6, 11.5).
//
//   S[i][j] = sum_h w[i][h] * relu(q[i][h] . k_j)
//
// q and k are e2m1 with a ue8m0 scale per 32, so a 32-block's dot product is an exact integer (in units of
// 1/4 * 2^(sq + sk)); blocks are summed in order, then heads 0, 1, ... by one fused multiply-add each. CPU and GPU
// that keep this order agree bit for bit.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "ops/rows.h"

namespace senko::ops {

// rope + qdq_fp4_32 of the indexer's queries.
struct IndexQueryParams {
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t dim = 0;
  int64_t rope_dim = 0;
  const float* q = nullptr;     // [rows, heads, dim], wq_b's output
  const float* rope = nullptr;  // [rows, rope_dim / 2, 2]
  bool round_bf16 = false;
  uint8_t* values = nullptr;  // [rows, heads, dim / 2]
  uint8_t* scales = nullptr;  // [rows, heads, dim / 32]
};
void IndexQueryReference(const IndexQueryParams& p, ThreadPool& pool);
void IndexQueryCpu(const IndexQueryParams& p, ThreadPool& pool);

// The indexer of one layer for a set of rows.
struct IndexScoreParams {
  RowBatch rows;
  int64_t heads = 0;
  int64_t dim = 0;
  const uint8_t* q_values = nullptr;
  const uint8_t* q_scales = nullptr;
  const float* weights = nullptr;  // [num_rows, heads], times dim^-0.5 * heads^-0.5
  EntryView entries;
};

// Scores of entries [begin, begin + count) for one row: out[count]. Thread-safe.
void IndexScoreReference(const IndexScoreParams& p, int64_t row, int64_t begin, int64_t count, float* out);
void IndexScoreCpu(const IndexScoreParams& p, int64_t row, int64_t begin, int64_t count, float* out);

}  // namespace senko::ops
