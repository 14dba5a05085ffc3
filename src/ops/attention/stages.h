// One query row's attention as four stages, each over an independent range, so that a lone row can be spread
// over threads and a batch run one row a thread with the same bits.
//
//   rotate  heads     the rotary tail of q
//   score   panels    q . k for 32 keys at a time, every head
//   weigh   heads     softmax against the final maximum; the denominator with the sink
//   mix     channels  weights . values, block by block; division, inverse rotation
//
// The score buffer is [heads, columns]: window keys first, then entries, each list padded to whole panels.
#pragma once

#include <cstdint>

#include "ops/attention/attention.h"
#include "ops/attention/key_rows.h"
#include "tensor/buffer.h"

namespace senko::ops {

struct RowWork {
  const AttentionParams* p = nullptr;
  int64_t row = 0;
  KeyRows keys{};
  int64_t window_columns = 0;     // keys.num_window padded
  int64_t columns = 0;            // and the entries behind them
  float* rotated = nullptr;       // [heads, rope_dim], the tail of q
  float* scores = nullptr;        // [heads, columns]; weights after `weigh`
  float* denominators = nullptr;  // [heads]

  int64_t panels() const { return columns / kPanel; }
};

// Bounded by the window, the selection and the heads: never by the context.
struct RowScratch {
  Buffer<float> rotated, scores, denominators;

  RowWork Prepare(const AttentionParams& p, int64_t row);
};

// A thread's tile: one score panel, or one value panel of a key block.
struct TileScratch {
  Buffer<float> tile;  // [max(dim, kKeyBlock), kPanel]

  float* Prepare(int64_t dim);
};

// The stages for the best instruction set of this machine.
struct Stages {
  void (*rotate)(const RowWork&, int64_t head_begin, int64_t head_end);
  void (*score)(const RowWork&, int64_t panel_begin, int64_t panel_end, float* tile);
  void (*weigh)(const RowWork&, int64_t head_begin, int64_t head_end);
  void (*mix)(const RowWork&, int64_t channel_begin, int64_t channel_end, float* tile);  // multiples of 32
};
Stages CpuStages();

}  // namespace senko::ops
