// The wide kernel: weights expanded to float once per block of outputs, then register-blocked dot products.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/linear/linear_panel.cc"
#include <algorithm>

#include "hwy/foreach_target.h"
#include "numerics/bf16.h"
#include "ops/linear/linear_dequantise-inl.h"
#include "ops/linear/linear_span.h"

HWY_BEFORE_NAMESPACE();
namespace senko::ops {
namespace HWY_NAMESPACE {
namespace {

// Rows and outputs whose accumulators fit the registers, one native part at a time.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
inline constexpr int kTileRows = 4;
#else
inline constexpr int kTileRows = 2;
#endif
inline constexpr int64_t kRowBlock = 64;  // rows whose chunk of x stays in L2 beside the panel

using NativeVec = hn::Vec<v::NativeF32>;

// Sums of one chunk for kRows x kTileOuts outputs.
//   x[r]: the row's columns of this chunk; steps full vectors of 16, then `tail` columns (0..15; never for FP4)
//   panel: [step][kTileOuts][16]; scales: [block][kTileOuts][16], FP4 only
template <int kRows, bool kGrouped>
HWY_NOINLINE void TileChunk(const float* const* HWY_RESTRICT x, const float* HWY_RESTRICT panel,
                            const float* HWY_RESTRICT scales, int64_t steps, int64_t tail,
                            float (*HWY_RESTRICT sums)[kTileOuts]) {
  constexpr size_t kLanes = v::kNativeLanes;
  const v::NativeF32 d;
  v::F32x16 lanes[kRows][kTileOuts];
  for (size_t part = 0; part < v::kParts; ++part) {
    const size_t offset = part * kLanes;
    NativeVec acc[kRows][kTileOuts];
    for (int r = 0; r < kRows; ++r) {
      for (int j = 0; j < kTileOuts; ++j) {
        acc[r][j] = hn::Zero(d);
        if constexpr (kGrouped) lanes[r][j].part[part] = hn::Zero(d);
      }
    }
    const float* HWY_RESTRICT w = panel + offset;
    const int64_t stride = kGrouped ? kFp4Steps : steps;
    for (int64_t base = 0; base < steps; base += stride) {
      for (int64_t s = base; s < base + stride; ++s, w += 16 * kTileOuts) {
        NativeVec xv[kRows];
        for (int r = 0; r < kRows; ++r) xv[r] = hn::LoadU(d, x[r] + 16 * s + offset);
        for (int j = 0; j < kTileOuts; ++j) {
          const auto wv = hn::Load(d, w + 16 * j);
          for (int r = 0; r < kRows; ++r) acc[r][j] = hn::MulAdd(xv[r], wv, acc[r][j]);
        }
      }
      if constexpr (kGrouped) {
        const float* HWY_RESTRICT scale = scales + base / kFp4Steps * kTileOuts * 16 + offset;
        for (int r = 0; r < kRows; ++r) {
          for (int j = 0; j < kTileOuts; ++j) {
            auto& total = lanes[r][j].part[part];
            total = hn::MulAdd(acc[r][j], hn::Load(d, scale + 16 * j), total);
            acc[r][j] = hn::Zero(d);
          }
        }
      }
    }
    if (tail > 0) {
      for (int r = 0; r < kRows; ++r) {
        const auto xv = v::LoadN16(x[r] + 16 * steps, tail).part[part];
        for (int j = 0; j < kTileOuts; ++j) acc[r][j] = hn::MulAdd(xv, hn::Load(d, w + 16 * j), acc[r][j]);
      }
    }
    if constexpr (!kGrouped) {
      for (int r = 0; r < kRows; ++r) {
        for (int j = 0; j < kTileOuts; ++j) lanes[r][j].part[part] = acc[r][j];
      }
    }
  }
  float* const flat = &sums[0][0];
  const v::F32x16* const from = &lanes[0][0];
  constexpr int kSums = kRows * kTileOuts;
  for (int i = 0; i + 4 <= kSums; i += 4) v::ReduceSum4(from + i, flat + i);
  for (int i = kSums / 4 * 4; i < kSums; ++i) flat[i] = v::ReduceSum(from[i]);
}

// Adds one chunk's sums of rows [row, row + kRows) and outputs [n, n + outs) to y.
template <int kRows>
void TileRows(const LinearSpan& p, int64_t row, int64_t n, int outs, int64_t k0, int64_t count, const float* panel,
              const float* scales) {
  const float* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = p.x[row + r] + k0;
  float sums[kRows][kTileOuts];
  if (p.weight.format == WeightFormat::kFp4) {
    TileChunk<kRows, true>(x, panel, scales, PackedCols(count) / 16, 0, sums);
  } else {
    TileChunk<kRows, false>(x, panel, scales, count / 16, count % 16, sums);
  }
  const bool last = k0 + count == p.weight.in;
  for (int r = 0; r < kRows; ++r) {
    float* y = p.y[row + r] + (n - p.y_first);
    for (int j = 0; j < outs; ++j) {
      const float total = (k0 == 0 ? 0.0f : y[j]) + sums[r][j];
      y[j] = last && p.round_bf16 ? numerics::RoundToBf16(total) : total;
    }
  }
}

// One chunk of one tile of outputs [n, n + outs) expanded into `values` and `scales`; the places past `outs` repeat the
// last output.
void FillTile(const WeightView& w, int64_t n, int outs, int64_t k0, int64_t count, float* values, float* scales) {
  for (int j = 0; j < kTileOuts; ++j) {
    DequantiseRow(w, n + std::min(j, outs - 1), k0, count, values + 16 * j, scales + 16 * j);
  }
}

// One tile for rows [row0, row1).
void RunTile(const LinearSpan& p, int64_t row0, int64_t row1, int64_t n, int outs, int64_t k0, int64_t count,
             const float* values, const float* scales) {
  int64_t row = row0;
  for (; row + kTileRows <= row1; row += kTileRows) {
    TileRows<kTileRows>(p, row, n, outs, k0, count, values, scales);
  }
  for (; row < row1; ++row) TileRows<1>(p, row, n, outs, k0, count, values, scales);
}

// The whole span. panel: kPanelFloats floats, 64-byte aligned, of the calling thread.
void PanelSpan(const LinearSpan& p, float* panel) {
  float* const scales = panel + kPanelOuts * kChunk;
  // One block of rows uses a tile once, so every tile may take the same place and stay in L1.
  const bool one_block = p.rows <= kRowBlock;
  for (int64_t n0 = p.begin; n0 < p.end; n0 += kPanelOuts) {
    const int64_t n1 = std::min(n0 + kPanelOuts, p.end);
    for (int64_t k0 = 0; k0 < p.weight.in; k0 += kChunk) {
      const int64_t count = std::min(kChunk, p.weight.in - k0);
      for (int64_t row0 = 0; row0 < p.rows; row0 += kRowBlock) {
        const int64_t row1 = std::min(row0 + kRowBlock, p.rows);
        for (int64_t n = n0; n < n1; n += kTileOuts) {
          const int outs = static_cast<int>(std::min<int64_t>(kTileOuts, n1 - n));
          const int64_t place = one_block ? 0 : n - n0;
          float* const tile = panel + place * kChunk;
          float* const tile_scales = scales + place * kScaleFloats;
          if (row0 == 0) FillTile(p.weight, n, outs, k0, count, tile, tile_scales);
          RunTile(p, row0, row1, n, outs, k0, count, tile, tile_scales);
        }
      }
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace senko::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "tensor/buffer.h"

namespace senko::ops {
namespace {

HWY_EXPORT(PanelSpan);

constexpr size_t kPanelFloats = 96 * (kChunk + kChunk / kFp4BlockCols * 16);  // values and FP4 scales

}  // namespace

void SpanByPanel(const LinearSpan& span) {
  thread_local Buffer<float> panel(kPanelFloats);
  HWY_DYNAMIC_DISPATCH(PanelSpan)(span, panel.data());
}

}  // namespace senko::ops
#endif  // HWY_ONCE
