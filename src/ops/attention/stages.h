// One query row's attention as four stages, each over an independent range, so that a lone row can be spread over
// threads and a batch run one row a thread with the same bits.
//
//   pack    heads     rotates q; heads interleaved for the score kernel
//   score   panels    q . k for 32 keys at a time, every head
//   weigh   heads     softmax against the final maximum; the denominator with the sink
//   mix     channels  weights . values, block by block; division, inverse rotation
//
// The score buffer is [padded heads, columns]: window keys first, then entries, each list padded to whole panels.
#pragma once

#include <cstdint>
#include <vector>

#include "numerics/packed_rows.h"
#include "ops/attention/attention.h"
#include "ops/attention/key_rows.h"
#include "tensor/buffer.h"

namespace senko::ops {

inline constexpr int64_t kPanelKeys = 32;
inline constexpr int64_t kHeadPadding = 8;  // the widest register tile

struct RowWork {
  const AttentionParams* p = nullptr;
  int64_t row = 0;
  KeyRows keys{};
  int64_t window_columns = 0;  // keys.num_window padded
  int64_t columns = 0;         // and the entries behind them
  float* q = nullptr;          // [padded heads / tile heads][dim][tile heads]
  float* scores = nullptr;     // [padded heads, columns]; weights after `weigh`
  float* denominators = nullptr;  // [padded heads]

  int64_t panels() const { return columns / kPanelKeys; }
};

// Bounded by the window, the selection and the heads: never by the context.
struct RowScratch {
  Buffer<float> q, scores, denominators;

  RowWork Prepare(const AttentionParams& p, int64_t row);
};

// A thread's tiles: one score panel and one block of values.
struct TileScratch {
  Buffer<float> tile;  // [max(dim * kPanelKeys, kKeyBlock * dim)]

  float* Prepare(int64_t dim);
};

// The stages for the best instruction set of this machine.
struct Stages {
  void (*pack)(const RowWork&, int64_t head_begin, int64_t head_end);       // begin a multiple of kHeadPadding
  void (*score)(const RowWork&, int64_t panel_begin, int64_t panel_end, float* tile);
  void (*weigh)(const RowWork&, int64_t head_begin, int64_t head_end);
  void (*mix)(const RowWork&, int64_t channel_begin, int64_t channel_end, float* tile);  // multiples of 32
};
Stages CpuStages();

}  // namespace senko::ops
