// The skinny kernel: few rows, weights streamed once from memory and expanded in registers. Gives the bits of
// linear_panel.cc.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/linear/linear_skinny.cc"
#include "hwy/foreach_target.h"
#include "ops/linear/linear_decode-inl.h"

#include <algorithm>
#include <cstring>

#include "hwy/cache_control.h"
#include "numerics/bf16.h"
#include "ops/linear/linear_span.h"

HWY_BEFORE_NAMESPACE();
namespace senko::ops {
namespace HWY_NAMESPACE {
namespace {
#if SENKO_LINEAR_DECODE

template <int kOuts, int kRows>
struct Lanes {
  v::F32x16 sum[kOuts][kRows];
};

template <int kOuts, int kRows>
HWY_INLINE void Clear(Lanes<kOuts, kRows>& lanes) {
  for (int o = 0; o < kOuts; ++o) {
    for (int r = 0; r < kRows; ++r) lanes.sum[o][r] = v::Zero16();
  }
}

template <int j, int i, int kOuts, int kRows>
HWY_INLINE void Fp4Step(const Fp4Block* blocks, const float* const* x, int64_t k, Lanes<kOuts, kRows>& part) {
  v::F32x16 w[kOuts];
  for (int o = 0; o < kOuts; ++o) w[o] = Fp4Values<j, i>(blocks[o]);
  for (int r = 0; r < kRows; ++r) {
    const v::F32x16 xv = v::LoadU16(x[r] + k + 16 * (8 * j + i));
    for (int o = 0; o < kOuts; ++o) part.sum[o][r] = v::MulAdd(xv, w[o], part.sum[o][r]);
  }
}

template <int j, int kOuts, int kRows>
HWY_INLINE void Fp4Dword(const Fp4Block* blocks, const float* const* x, int64_t k, Lanes<kOuts, kRows>& part) {
  Fp4Step<j, 0>(blocks, x, k, part);
  Fp4Step<j, 1>(blocks, x, k, part);
  Fp4Step<j, 2>(blocks, x, k, part);
  Fp4Step<j, 3>(blocks, x, k, part);
  Fp4Step<j, 4>(blocks, x, k, part);
  Fp4Step<j, 5>(blocks, x, k, part);
  Fp4Step<j, 6>(blocks, x, k, part);
  Fp4Step<j, 7>(blocks, x, k, part);
}

// Columns [k0, k0 + 512 * blocks) of outputs whose bytes and scales start at w[o], s[o].
template <int kOuts, int kRows>
HWY_INLINE void Fp4Chunk(const uint8_t* const* w, const uint8_t* const* s, int64_t ahead, const float* const* x,
                         int64_t k0, int64_t blocks, Lanes<kOuts, kRows>& lanes) {
  for (int64_t b = 0; b < blocks; ++b) {
    Fp4Block block[kOuts];
    Lanes<kOuts, kRows> part;
    Clear(part);
    for (int o = 0; o < kOuts; ++o) {
      const uint8_t* p = w[o] + 256 * b;
      for (int line = 0; line < 256; line += 64) hwy::Prefetch(p + ahead + line);
      block[o] = LoadFp4Block(p);
    }
    const int64_t k = k0 + kFp4BlockCols * b;
    Fp4Dword<0>(block, x, k, part);
    Fp4Dword<1>(block, x, k, part);
    Fp4Dword<2>(block, x, k, part);
    Fp4Dword<3>(block, x, k, part);
    for (int o = 0; o < kOuts; ++o) {
      const v::F32x16 scale = Fp4Scales(s[o] + 16 * b);
      for (int r = 0; r < kRows; ++r) lanes.sum[o][r] = v::MulAdd(part.sum[o][r], scale, lanes.sum[o][r]);
    }
  }
}

// One FP4 output group over all of K. total[o][r] receives the dot products.
template <int kOuts, int kRows>
HWY_INLINE void Fp4Dot(const WeightView& w, int64_t n, const float* const* x, float (*total)[kRows]) {
  for (int64_t k0 = 0; k0 < w.in; k0 += kChunk) {
    const int64_t count = std::min(kChunk, w.in - k0), whole = count / kFp4BlockCols;
    const uint8_t *data[kOuts], *scales[kOuts];
    for (int o = 0; o < kOuts; ++o) {
      data[o] = w.data + (n + o) * (w.in / 2) + k0 / 2;
      scales[o] = w.scale + (n + o) * (w.in / 32) + k0 / 32;
    }
    Lanes<kOuts, kRows> lanes;
    Clear(lanes);
    Fp4Chunk(data, scales, kOuts * (w.in / 2), x, k0, whole, lanes);
    if (count % kFp4BlockCols != 0) {
      uint8_t tail[kOuts][256] = {}, tail_scales[kOuts][16] = {};
      const uint8_t *tail_data[kOuts], *tail_scale[kOuts];
      const int64_t left = count % kFp4BlockCols;
      for (int o = 0; o < kOuts; ++o) {
        std::memcpy(tail[o], data[o] + 256 * whole, left / 2);
        std::memcpy(tail_scales[o], scales[o] + 16 * whole, left / 32);
        tail_data[o] = tail[o];
        tail_scale[o] = tail_scales[o];
      }
      Fp4Chunk(tail_data, tail_scale, 0, x, k0 + whole * kFp4BlockCols, 1, lanes);
    }
    for (int o = 0; o < kOuts; ++o) {
      for (int r = 0; r < kRows; ++r) total[o][r] += v::ReduceSum(lanes.sum[o][r]);
    }
  }
}

// One FP8 output group inside a tile of 32 outputs. Returns whether a NaN code was among the weights.
template <int kOuts, int kRows>
HWY_INLINE bool Fp8Dot(const WeightView& w, int64_t n, const float* const* x, float (*total)[kRows]) {
  const uint8_t* data[kOuts];
  for (int o = 0; o < kOuts; ++o) data[o] = w.data + (n + o) * w.in;
  const uint8_t* const scales = w.scale + n / 32 * ((w.in + 31) / 32);
  const int64_t ahead = kOuts * w.in;
  __m256i largest = _mm256_setzero_si256();
  for (int64_t k0 = 0; k0 < w.in; k0 += kChunk) {
    const int64_t end = std::min(k0 + kChunk, w.in);
    Lanes<kOuts, kRows> lanes;
    Clear(lanes);
    for (int64_t k = k0; k < end; k += 32) {
      const v::F32x16 scale = v::Set16(Fp8Multiplier(scales[k / 32]));
      v::F32x16 w0[kOuts], w1[kOuts];
      for (int o = 0; o < kOuts; ++o) {
        hwy::Prefetch(data[o] + k + ahead);
        const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data[o] + k));
        largest = Fp8Largest(largest, codes);
        const Fp8Pair pair = Fp8Values(codes);
        w0[o] = v::Mul(pair.first, scale);
        w1[o] = v::Mul(pair.second, scale);
      }
      for (int r = 0; r < kRows; ++r) {
        const v::F32x16 x0 = v::LoadU16(x[r] + k), x1 = v::LoadU16(x[r] + k + 16);
        for (int o = 0; o < kOuts; ++o) lanes.sum[o][r] = v::MulAdd(x0, w0[o], lanes.sum[o][r]);
        for (int o = 0; o < kOuts; ++o) lanes.sum[o][r] = v::MulAdd(x1, w1[o], lanes.sum[o][r]);
      }
    }
    for (int o = 0; o < kOuts; ++o) {
      for (int r = 0; r < kRows; ++r) total[o][r] += v::ReduceSum(lanes.sum[o][r]);
    }
  }
  return IsFp8Nan(largest);
}

// bf16 and float32 weights; K is a multiple of 16.
template <bool kBf16, int kOuts, int kRows>
HWY_INLINE void PlainDot(const WeightView& w, int64_t n, const float* const* x, float (*total)[kRows]) {
  constexpr int64_t kBytes = kBf16 ? 2 : 4;
  const uint8_t* data[kOuts];
  for (int o = 0; o < kOuts; ++o) data[o] = w.data + (n + o) * w.in * kBytes;
  const int64_t ahead = kOuts * w.in * kBytes;
  for (int64_t k0 = 0; k0 < w.in; k0 += kChunk) {
    const int64_t end = std::min(k0 + kChunk, w.in);
    Lanes<kOuts, kRows> lanes;
    Clear(lanes);
    for (int64_t k = k0; k < end; k += 16) {
      v::F32x16 wv[kOuts];
      for (int o = 0; o < kOuts; ++o) {
        const uint8_t* p = data[o] + kBytes * k;
        hwy::Prefetch(p + ahead);
        wv[o] = kBf16 ? v::LoadBf16x16(p) : v::LoadU16(reinterpret_cast<const float*>(p));
      }
      for (int r = 0; r < kRows; ++r) {
        const v::F32x16 xv = v::LoadU16(x[r] + k);
        for (int o = 0; o < kOuts; ++o) lanes.sum[o][r] = v::MulAdd(xv, wv[o], lanes.sum[o][r]);
      }
    }
    for (int o = 0; o < kOuts; ++o) {
      for (int r = 0; r < kRows; ++r) total[o][r] += v::ReduceSum(lanes.sum[o][r]);
    }
  }
}

// Outputs [n, n + kOuts) for rows [row, row + kRows). False: a NaN weight code, nothing was written.
template <WeightFormat kFormat, int kOuts, int kRows>
HWY_NOINLINE bool Tile(const LinearSpan& p, int64_t n, int64_t row) {
  const float* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = p.x[row + r];
  float total[kOuts][kRows] = {};
  if constexpr (kFormat == WeightFormat::kFp4) {
    Fp4Dot<kOuts, kRows>(p.weight, n, x, total);
  } else if constexpr (kFormat == WeightFormat::kFp8) {
    if (Fp8Dot<kOuts, kRows>(p.weight, n, x, total)) return false;
  } else {
    PlainDot<kFormat == WeightFormat::kBf16, kOuts, kRows>(p.weight, n, x, total);
  }
  for (int r = 0; r < kRows; ++r) {
    float* y = p.y[row + r] + (n - p.y_first);
    for (int o = 0; o < kOuts; ++o) y[o] = p.round_bf16 ? numerics::RoundToBf16(total[o][r]) : total[o][r];
  }
  return true;
}

// kOuts outputs for all rows, as many rows at a time as the registers hold; the weights are in L1 after the first.
template <WeightFormat kFormat, int kOuts>
bool Outputs(const LinearSpan& p, int64_t n) {
  int64_t row = 0;
  for (; row + 4 <= p.rows; row += 4) {
    if (!Tile<kFormat, kOuts, 4>(p, n, row)) return false;
  }
  if (row + 2 <= p.rows) {
    if (!Tile<kFormat, kOuts, 2>(p, n, row)) return false;
    row += 2;
  }
  return row == p.rows || Tile<kFormat, kOuts, 1>(p, n, row);
}

// Whether the kernels above cover output n's scale tile: whole vectors, and FP8 scales that leave room for 2^8.
bool Covers(const WeightView& w, int64_t n) {
  if (w.format == WeightFormat::kFp4) return true;
  if (w.format != WeightFormat::kFp8) return w.in % 16 == 0;
  const int64_t count = w.in / 32;
  const uint8_t* scales = w.scale + n / 32 * count;
  uint8_t top = 0;
  for (int64_t i = 0; i < count; ++i) top = std::max(top, scales[i]);
  return top <= kFp8TopScale;
}

// The whole span, with the panel for the outputs the kernels do not cover.
template <WeightFormat kFormat, int kOuts>
void FormatSpan(const LinearSpan& span) {
  for (int64_t n = span.begin; n < span.end;) {
    const int64_t tile_end = std::min(span.end, (n / 32 + 1) * 32);
    const bool covered = Covers(span.weight, n);
    while (n < tile_end) {
      const int64_t outs = !covered ? tile_end - n : n + kOuts <= tile_end ? kOuts : 1;
      if (!covered || !(outs == kOuts ? Outputs<kFormat, kOuts>(span, n) : Outputs<kFormat, 1>(span, n))) {
        LinearSpan part = span;
        part.begin = n;
        part.end = n + outs;
        SpanByPanel(part);
      }
      n += outs;
    }
  }
}

#if HWY_TARGET == HWY_AVX3
constexpr int kPlainOuts = 4;
#else
constexpr int kPlainOuts = 2;
#endif

void SkinnySpan(const LinearSpan& span) {
  switch (span.weight.format) {
    case WeightFormat::kFp4: return FormatSpan<WeightFormat::kFp4, 2>(span);
    case WeightFormat::kFp8: return FormatSpan<WeightFormat::kFp8, kPlainOuts>(span);
    case WeightFormat::kBf16: return FormatSpan<WeightFormat::kBf16, kPlainOuts>(span);
    case WeightFormat::kF32: return FormatSpan<WeightFormat::kF32, kPlainOuts>(span);
  }
}
#else
void SkinnySpan(const LinearSpan& span) { SpanByPanel(span); }
#endif  // SENKO_LINEAR_DECODE

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace senko::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace senko::ops {

HWY_EXPORT(SkinnySpan);

void SpanByStream(const LinearSpan& span) { HWY_DYNAMIC_DISPATCH(SkinnySpan)(span); }

}  // namespace senko::ops
#endif  // HWY_ONCE
