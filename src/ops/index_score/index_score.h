// Indexer queries and scores (model.md 3.6, 11.5).
//
//   S[i][j] = sum_h w[i][h] * relu(q[i][h] . k_j)
//
// q and k are e2m1 with a ue8m0 scale per 32, so a 32-block's dot product is an exact integer in units of
// 1/4 * 2^(sq + sk). In float32, every step one operation, so that CPU and GPU agree bit for bit:
//   scale_b = (2^sq / 4) * 2^sk            dot = fma(integer_b, scale_b, dot)   blocks in order, from 0
//   relu    = dot < 0 ? 0 : dot            S   = fma(w[h], relu, S)             heads in order, from 0
// A NaN in q, k or w reaches S.
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
  const float* weights = nullptr;  // [num_rows, heads], already multiplied by dim^-0.5 * heads^-0.5
  EntryView entries;
};

// Scores of entries [begin, begin + count) for one row: out[count]. Thread-safe.
void IndexScoreReference(const IndexScoreParams& p, int64_t row, int64_t begin, int64_t count, float* out);
void IndexScoreCpu(const IndexScoreParams& p, int64_t row, int64_t begin, int64_t count, float* out);

// The same for any entries: out[i] is the score of entry list[i]. Reads of scattered keys cost no more
// arithmetic than contiguous ones.
void IndexScoreListReference(const IndexScoreParams& p, int64_t row, const int32_t* list, int64_t count, float* out);
void IndexScoreListCpu(const IndexScoreParams& p, int64_t row, const int32_t* list, int64_t count, float* out);

}  // namespace senko::ops
