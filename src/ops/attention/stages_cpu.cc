// The stages of one row (stages.h).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attention/stages_cpu.cc"
#include <hwy/foreach_target.h>
// after foreach_target.h, as Highway wants it
#include "numerics/simd/lanes-inl.h"
#include "numerics/simd/math-inl.h"
#include "ops/attention/kernels-inl.h"
#include "ops/attention/key_tiles-inl.h"

#include <algorithm>
#include <limits>

#include "numerics/e4m3.h"
#include "numerics/ue8m0.h"
#include "ops/attention/stages.h"
#include "ops/norm/norm.h"

HWY_BEFORE_NAMESPACE();
namespace senko::ops::HWY_NAMESPACE {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

int64_t PaddedHeads(int64_t heads) { return numerics::RoundUp(heads, kHeadPadding); }

void Pack(const RowWork& w, int64_t head_begin, int64_t head_end) {
  const AttentionParams& p = *w.p;
  const int64_t tail = p.dim - p.rope_dim;
  const float* table = p.rope + w.row * p.rope_dim;
  for (int64_t h = head_begin; h < numerics::RoundUp(head_end, kHeadPadding); ++h) {
    float* packed = w.q + h / kTileHeads * kTileHeads * p.dim + h % kTileHeads;
    if (h >= p.heads) {  // padding: its scores are never looked at
      for (int64_t d = 0; d < p.dim; ++d) packed[d * kTileHeads] = 0.0f;
      continue;
    }
    const float* q = p.q + (w.row * p.heads + h) * p.dim;
    for (int64_t d = 0; d < tail; ++d) packed[d * kTileHeads] = q[d];
    for (int64_t n = 0; n < p.rope_dim / 2; ++n) {
      float pair[2] = {q[tail + 2 * n], q[tail + 2 * n + 1]};
      RopeRotate(pair, table + 2 * n, 1, /*inverse=*/false, p.round_bf16);
      packed[(tail + 2 * n) * kTileHeads] = pair[0];
      packed[(tail + 2 * n + 1) * kTileHeads] = pair[1];
    }
  }
}

// A panel's keys. Missing ones repeat the first: their scores are overwritten.
struct Panel {
  bool window;
  int64_t count;
  const uint8_t* rows[kPanel];
};

Panel FindPanel(const RowWork& w, int64_t panel) {
  const AttentionParams& p = *w.p;
  const int64_t column = panel * kPanel;
  Panel found;
  found.window = column < w.window_columns;
  const int64_t first = found.window ? column : column - w.window_columns;
  found.count = std::min(kPanel, (found.window ? w.keys.num_window : w.keys.num_selected) - first);
  for (int64_t k = 0; k < kPanel; ++k) {
    const int64_t key = first + (k < found.count ? k : 0);
    found.rows[k] = found.window ? WindowRow(p.window, *w.keys.sequence, w.keys.window_begin + key)
                                 : p.entries.Entry(*w.keys.sequence, w.keys.selected[key]);
  }
  return found;
}

void Score(const RowWork& w, int64_t panel_begin, int64_t panel_end, float* tile) {
  const AttentionParams& p = *w.p;
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    const Panel keys = FindPanel(w, panel);
    for (int64_t half = 0; half < kPanel; half += 16) {
      if (keys.window) {
        WindowKeysByChannel(keys.rows + half, p.dim, tile + half);
      } else {
        EntryKeysByChannel(keys.rows + half, p.dim, tile + half);
      }
    }
    float* scores = w.scores + panel * kPanel;
    for (int64_t h = 0; h < PaddedHeads(p.heads); h += kTileHeads) {
      ScoreTile(w.q + h * p.dim, tile, p.dim, p.scale, scores + h * w.columns, w.columns);
    }
    if (keys.count == kPanel) continue;
    for (int64_t h = 0; h < p.heads; ++h) {
      std::fill(scores + h * w.columns + keys.count, scores + h * w.columns + kPanel, -kInfinity);
    }
  }
}

// Exponentials of `scores` against `top` in place, rounded to bf16 for the product with the values. Returns the sum
// of the unrounded ones: per block of kKeyBlock keys, blocks in order.
HWY_INLINE float WeighList(float* scores, int64_t columns, float top, bool round_bf16) {
  const v::F32x16 top16 = v::Set16(top);
  float total = 0;
  for (int64_t block = 0; block < columns; block += kKeyBlock) {
    v::F32x16 sum = v::Zero16();
    const int64_t end = std::min(columns, block + kKeyBlock);
    for (int64_t k = block; k < end; k += 16) {
      const v::F32x16 weight = v::Exp(v::Sub(v::Load16(scores + k), top16));
      sum = v::Add(sum, weight);
      v::Store16(round_bf16 ? v::RoundToBf16(weight) : weight, scores + k);
    }
    total += v::ReduceSum(sum);
  }
  return total;
}

void Weigh(const RowWork& w, int64_t head_begin, int64_t head_end) {
  const AttentionParams& p = *w.p;
  for (int64_t h = head_begin; h < head_end; ++h) {
    float* scores = w.scores + h * w.columns;
    // A NaN may be lost here; its own exponential brings it back.
    v::F32x16 top16 = v::Set16(-kInfinity);
    for (int64_t k = 0; k < w.columns; k += 16) top16 = v::Max(top16, v::Load16(scores + k));
    const float top = v::ReduceMax(top16);
    const float window = WeighList(scores, w.window_columns, top, p.round_bf16);
    const float entries = WeighList(scores + w.window_columns, w.columns - w.window_columns, top, p.round_bf16);
    alignas(64) float sink[16];
    v::Store16(v::Exp(v::Set16(p.sink[h] - top)), sink);
    w.denominators[h] = window + entries + sink[0];
  }
}

// values[panel][kPanel of channels] of up to kKeyBlock keys from `column` on, for channels [begin, end).
HWY_INLINE void FillValues(const RowWork& w, bool window, int64_t first, int64_t count, int64_t begin, int64_t end,
                           float* tile) {
  const AttentionParams& p = *w.p;
  for (int64_t k = 0; k < count; ++k) {
    float* out = tile + k * kPanel;
    if (window) {
      const uint8_t* row = WindowRow(p.window, *w.keys.sequence, w.keys.window_begin + first + k);
      for (int64_t d = begin; d < end; d += kPanel, out += kKeyBlock * kPanel) {
        WindowValues32(row, d, numerics::Ue8m0ToFloat(row[p.dim + d / 32]), out);
      }
    } else {
      const uint8_t* row = p.entries.Entry(*w.keys.sequence, w.keys.selected[first + k]);
      const uint8_t* scales = row + p.dim / 2;
      for (int64_t d = begin; d < end; d += kPanel, out += kKeyBlock * kPanel) {
        EntryValues32(row, d, numerics::E4m3ToFloat(scales[d / 16]), numerics::E4m3ToFloat(scales[d / 16 + 1]), out);
      }
    }
  }
}

// Divides channels [begin, end) of one head by the denominator and rotates back those in the tail.
HWY_INLINE void FinishHead(const RowWork& w, int64_t h, int64_t begin, int64_t end) {
  const AttentionParams& p = *w.p;
  float* out = p.out + (w.row * p.heads + h) * p.dim;
  const v::F32x16 denominator = v::Set16(w.denominators[h]);
  for (int64_t d = begin; d < end; d += 16) {
    const v::F32x16 value = v::Div(v::LoadU16(out + d), denominator);
    v::StoreU16(p.round_bf16 ? v::RoundToBf16(value) : value, out + d);
  }
  const int64_t tail = p.dim - p.rope_dim;
  const int64_t from = std::max(begin, tail);
  if (from >= end) return;
  RopeRotate(out + from, p.rope + w.row * p.rope_dim + (from - tail), (end - from) / 2, /*inverse=*/true, p.round_bf16);
}

void Mix(const RowWork& w, int64_t channel_begin, int64_t channel_end, float* tile) {
  const AttentionParams& p = *w.p;
  float* out = p.out + w.row * p.heads * p.dim;
  bool add = false;
  for (const bool window : {true, false}) {
    const int64_t keys = window ? w.keys.num_window : w.keys.num_selected;
    for (int64_t first = 0; first < keys; first += kKeyBlock) {
      const int64_t count = std::min(kKeyBlock, keys - first);
      FillValues(w, window, first, count, channel_begin, channel_end, tile);
      const float* weights = w.scores + (window ? 0 : w.window_columns) + first;
      for (int64_t d = channel_begin; d < channel_end; d += kPanel) {
        const float* values = tile + (d - channel_begin) * kKeyBlock;
        for (int64_t h = 0; h < p.heads; h += kTileHeads) {
          ValueTile(weights + h * w.columns, w.columns, std::min<int64_t>(kTileHeads, p.heads - h), values, count, add,
                    out + h * p.dim + d, p.dim);
        }
      }
      add = true;
    }
  }
  for (int64_t h = 0; h < p.heads; ++h) {
    if (!add) std::fill(out + h * p.dim + channel_begin, out + h * p.dim + channel_end, 0.0f);  // no key at all
    FinishHead(w, h, channel_begin, channel_end);
  }
}

}  // namespace
}  // namespace senko::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace senko::ops {

HWY_EXPORT(Pack);
HWY_EXPORT(Score);
HWY_EXPORT(Weigh);
HWY_EXPORT(Mix);

Stages CpuStages() {
  return {HWY_DYNAMIC_DISPATCH(Pack), HWY_DYNAMIC_DISPATCH(Score), HWY_DYNAMIC_DISPATCH(Weigh),
          HWY_DYNAMIC_DISPATCH(Mix)};
}

}  // namespace senko::ops
#endif
