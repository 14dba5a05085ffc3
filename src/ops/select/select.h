// Two-level top-k selection of entries (model.md 3.6, 11.1).
//
// The higher score wins; among equals (+0 and -0 are equal) the lower index. A NaN score is lower than every
// number; every visible entry is eligible whatever its score. Scratch is fixed: scores are produced in tiles
// and merged into a running top-k, so it never grows with the context.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "ops/index_score/index_score.h"

namespace senko::ops {

struct SelectParams {
  IndexScoreParams score;
  int64_t topk = 0;
  const int64_t* visible = nullptr;  // [num_rows] entries 0 .. visible-1 exist for the row

  // At most one of the next two: a layer that publishes is not itself restricted.
  // Restrict to candidate blocks published earlier: ascending block indices, [num_rows, candidate_stride].
  const int32_t* candidates = nullptr;
  const int32_t* candidate_count = nullptr;
  // Publish candidate blocks: of the blocks with visible entries the `candidate_blocks` with the highest
  // maximum, ascending; the newest block is always among them.
  int32_t* candidates_out = nullptr;
  int32_t* candidate_count_out = nullptr;
  int64_t candidate_blocks = 0;      // at most this many per row
  int64_t candidate_block_size = 0;  // entries per block
  int64_t candidate_stride = 0;      // of both arrays

  int32_t* selected = nullptr;        // [num_rows, selected_stride], ascending entry indices
  int32_t* selected_count = nullptr;  // [num_rows] = min(topk, eligible)
  int64_t selected_stride = 0;
};

// When a row has no more than topk eligible entries all of them are selected and scores are skipped, unless
// it must publish candidates from more blocks than it may keep. Results do not depend on the pool's size.
void SelectReference(const SelectParams& p, ThreadPool& pool);
void SelectCpu(const SelectParams& p, ThreadPool& pool);

}  // namespace senko::ops
