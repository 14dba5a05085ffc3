// The stages of one row (stages.h).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attention/stages_cpu.cc"
#include <hwy/foreach_target.h>
// after foreach_target.h, as Highway wants it
#include <algorithm>
#include <limits>

#include "hwy/cache_control.h"
#include "numerics/packed_rows.h"
#include "numerics/simd/lanes-inl.h"
#include "numerics/simd/math-inl.h"
#include "ops/attention/kernels-inl.h"
#include "ops/attention/key_tiles-inl.h"
#include "ops/attention/stages.h"
#include "ops/norm/norm.h"

HWY_BEFORE_NAMESPACE();
namespace senko::ops::HWY_NAMESPACE {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void Rotate(const RowWork& w, int64_t head_begin, int64_t head_end) {
  const AttentionParams& p = *w.p;
  for (int64_t h = head_begin; h < head_end; ++h) {
    float* rotated = w.rotated + h * p.rope_dim;
    std::copy_n(p.q + ((w.row * p.heads + h) * p.dim + p.dim - p.rope_dim), p.rope_dim, rotated);
    RopeRotate(rotated, p.rope + w.row * p.rope_dim, p.rope_dim / 2, /*inverse=*/false, p.round_bf16);
  }
}

HWY_INLINE const uint8_t* KeyRow(const RowWork& w, bool window, int64_t key) {
  return window ? WindowRow(w.p->window, *w.keys.sequence, w.keys.window_begin + key)
                : w.p->entries.Entry(*w.keys.sequence, w.keys.selected[key]);
}

// A panel's keys. Missing ones repeat the first: their scores are overwritten.
struct Panel {
  bool window;
  int64_t count;
  const uint8_t* rows[kPanel];
};

Panel FindPanel(const RowWork& w, int64_t panel) {
  const int64_t column = panel * kPanel;
  Panel found;
  found.window = column < w.window_columns;
  const int64_t first = found.window ? column : column - w.window_columns;
  found.count = std::min(kPanel, (found.window ? w.keys.num_window : w.keys.num_selected) - first);
  for (int64_t k = 0; k < kPanel; ++k) {
    found.rows[k] = KeyRow(w, found.window, first + (k < found.count ? k : 0));
  }
  return found;
}

// A selection's rows are scattered over pages: the next panel's arrive while this one is multiplied.
HWY_INLINE void PrefetchPanel(const Panel& panel, int64_t dim) {
  const int64_t bytes = panel.window ? numerics::WindowRowBytes(dim) : numerics::EntryBytes(dim);
  for (int64_t k = 0; k < panel.count; ++k) {
    for (int64_t at = 0; at < bytes; at += 64) hwy::Prefetch(panel.rows[k] + at);
  }
}

void Score(const RowWork& w, int64_t panel_begin, int64_t panel_end, float* tile) {
  const AttentionParams& p = *w.p;
  if (panel_begin >= panel_end) return;  // no key at all
  Panel next = FindPanel(w, panel_begin);
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    const Panel keys = next;
    if (panel + 1 < panel_end) {
      next = FindPanel(w, panel + 1);
      PrefetchPanel(next, p.dim);
    }
    for (int64_t half = 0; half < kPanel; half += 16) {
      if (keys.window) {
        WindowKeysByChannel(keys.rows + half, p.dim, tile + half);
      } else {
        EntryKeysByChannel(keys.rows + half, p.dim, tile + half);
      }
    }
    float* scores = w.scores + panel * kPanel;
    const float* q = p.q + w.row * p.heads * p.dim;
    for (int64_t h = 0; h < p.heads; h += kTileHeads) {
      ScoreTile(q + h * p.dim, w.rotated + h * p.rope_dim, p.dim - p.rope_dim, p.dim,
                std::min<int64_t>(kTileHeads, p.heads - h), tile, p.scale, scores + h * w.columns, w.columns);
    }
    if (keys.count == kPanel) continue;
    for (int64_t h = 0; h < p.heads; ++h) {
      std::fill(scores + h * w.columns + keys.count, scores + h * w.columns + kPanel, -kInfinity);
    }
  }
}

// Exponentials of `scores` against `top` in place, rounded to bf16 for the product with the values. Returns
// the sum of the unrounded ones: per block of kKeyBlock keys, blocks in order.
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

// out (+)= weights . values over one block of at most kKeyBlock keys, for channels [begin, end).
HWY_INLINE void MixBlock(const RowWork& w, bool window, int64_t first, int64_t count, int64_t begin, int64_t end,
                         const float* e4m3, bool add, float* tile) {
  const AttentionParams& p = *w.p;
  const uint8_t* rows[kKeyBlock];
  for (int64_t k = 0; k < count; ++k) rows[k] = KeyRow(w, window, first + k);
  const float* weights = w.scores + (window ? 0 : w.window_columns) + first;
  for (int64_t d = begin; d < end; d += kPanel) {
    if (window) {
      WindowValues(rows, count, p.dim, d, tile);
    } else {
      EntryValues(rows, count, p.dim, d, e4m3, tile);
    }
    float* out = p.out + w.row * p.heads * p.dim + d;
    for (int64_t h = 0; h < p.heads; h += kTileHeads) {
      ValueTile(weights + h * w.columns, w.columns, std::min<int64_t>(kTileHeads, p.heads - h), tile, count, add,
                out + h * p.dim, p.dim);
    }
  }
}

void Mix(const RowWork& w, int64_t channel_begin, int64_t channel_end, float* tile) {
  const AttentionParams& p = *w.p;
  alignas(64) float e4m3[256];
  FillE4m3Table(e4m3);
  bool add = false;
  for (const bool window : {true, false}) {
    const int64_t keys = window ? w.keys.num_window : w.keys.num_selected;
    for (int64_t first = 0; first < keys; first += kKeyBlock) {
      MixBlock(w, window, first, std::min(kKeyBlock, keys - first), channel_begin, channel_end, e4m3, add, tile);
      add = true;
    }
  }
  for (int64_t h = 0; h < p.heads; ++h) {
    if (!add) {  // no key at all
      float* out = p.out + (w.row * p.heads + h) * p.dim;
      std::fill(out + channel_begin, out + channel_end, 0.0f);
    }
    FinishHead(w, h, channel_begin, channel_end);
  }
}

}  // namespace
}  // namespace senko::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace senko::ops {

HWY_EXPORT(Rotate);
HWY_EXPORT(Score);
HWY_EXPORT(Weigh);
HWY_EXPORT(Mix);

Stages CpuStages() {
  return {HWY_DYNAMIC_DISPATCH(Rotate), HWY_DYNAMIC_DISPATCH(Score), HWY_DYNAMIC_DISPATCH(Weigh),
          HWY_DYNAMIC_DISPATCH(Mix)};
}

}  // namespace senko::ops
#endif
