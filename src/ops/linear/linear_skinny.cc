// The skinny kernel: few rows, weights streamed once from memory and expanded in registers. Gives the bits of
// linear_panel.cc.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/linear/linear_skinny.cc"
#include <algorithm>
#include <cstring>

#include "hwy/foreach_target.h"
#include "numerics/bf16.h"
#include "ops/linear/linear_decode-inl.h"
#include "ops/linear/linear_span.h"
#include "tensor/buffer.h"

HWY_BEFORE_NAMESPACE();
namespace senko::ops {
namespace HWY_NAMESPACE {
namespace {
#if SENKO_LINEAR_DECODE

// How outputs are read kOuts at a time, and how far ahead weights are fetched; all of it measured. Outputs far apart
// suit the processor, which fetches ahead by page and takes several outputs in one page for disorder; but with more
// rows of x they and x would fall into the same places of L1. FP4 comes in blocks with much arithmetic between them: a
// few lines are fetched for L1, more for L2.
constexpr bool FarApart(WeightFormat format, int64_t rows) { return format == WeightFormat::kFp4 || rows <= 2; }
constexpr int64_t Ahead(int outs, int64_t stride, int64_t row_bytes) { return stride == 1 ? outs * row_bytes : 2048; }

// p + ahead may leave p's array, which a pointer may not.
HWY_INLINE void Prefetch(const uint8_t* p, int64_t ahead) {
  _mm_prefetch(reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(p) + ahead), _MM_HINT_T0);
}
HWY_INLINE void PrefetchFp4(const uint8_t* p) {
  Prefetch(p, 512);
  _mm_prefetch(reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(p) + 4096), _MM_HINT_T1);
}

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
HWY_INLINE void Fp4Chunk(const uint8_t* const* w, const uint8_t* const* s, const float* const* x, int64_t k0,
                         int64_t blocks, Lanes<kOuts, kRows>& lanes) {
  for (int64_t b = 0; b < blocks; ++b) {
    Fp4Block block[kOuts];
    Lanes<kOuts, kRows> part;
    Clear(part);
    for (int o = 0; o < kOuts; ++o) {
      const uint8_t* p = w[o] + 256 * b;
      for (int line = 0; line < 256; line += 64) PrefetchFp4(p + line);
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
HWY_INLINE void Fp4Dot(const WeightView& w, int64_t n, int64_t stride, const float* const* x, float (*total)[kRows]) {
  for (int64_t k0 = 0; k0 < w.in; k0 += kChunk) {
    const int64_t count = std::min(kChunk, w.in - k0), whole = count / kFp4BlockCols;
    const uint8_t *data[kOuts], *scales[kOuts];
    for (int o = 0; o < kOuts; ++o) {
      data[o] = w.data + (n + o * stride) * (w.in / 2) + k0 / 2;
      scales[o] = w.scale + (n + o * stride) * (w.in / 32) + k0 / 32;
    }
    Lanes<kOuts, kRows> lanes;
    Clear(lanes);
    Fp4Chunk(data, scales, x, k0, whole, lanes);
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
      Fp4Chunk(tail_data, tail_scale, x, k0 + whole * kFp4BlockCols, 1, lanes);
    }
    for (int o = 0; o < kOuts; ++o) {
      for (int r = 0; r < kRows; ++r) total[o][r] += v::ReduceSum(lanes.sum[o][r]);
    }
  }
}

// x times the scales of one tile of 32 outputs and 2^8: a product with a power of two is exact, so one multiplication
// here stands for 32 on the weights' side. False where it would not be exact, or x is not finite.
bool ScaleRow(const uint8_t* HWY_RESTRICT scales, int64_t in, const float* HWY_RESTRICT x, float* HWY_RESTRICT scaled) {
  const v::NativeF32 d;
  auto same = hn::Eq(hn::Zero(d), hn::Zero(d));
  for (int64_t k = 0; k < in; k += 32) {
    const auto up = hn::Set(d, Fp8Multiplier(scales[k / 32])), down = hn::Set(d, Fp8Divisor(scales[k / 32]));
    for (int64_t i = k; i < k + 32; i += static_cast<int64_t>(v::kNativeLanes)) {
      const auto before = hn::LoadU(d, x + i), after = hn::Mul(before, up);
      same = hn::And(same, hn::Eq(hn::Mul(after, down), before));
      hn::StoreU(after, d, scaled + i);
    }
  }
  return hn::AllTrue(d, same);
}

// Columns [k, k + 32).
template <int kOuts, int kRows>
HWY_INLINE void Fp8Step(const uint8_t* const* data, int64_t k, const float* const* x, Lanes<kOuts, kRows>& lanes) {
  Fp8Pair w[kOuts];
  for (int o = 0; o < kOuts; ++o) {
    w[o] = Fp8Values(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(data[o] + k)));
  }
  for (int r = 0; r < kRows; ++r) {
    const v::F32x16 x0 = v::LoadU16(x[r] + k), x1 = v::LoadU16(x[r] + k + 16);
    for (int o = 0; o < kOuts; ++o) lanes.sum[o][r] = v::MulAdd(x0, w[o].first, lanes.sum[o][r]);
    for (int o = 0; o < kOuts; ++o) lanes.sum[o][r] = v::MulAdd(x1, w[o].second, lanes.sum[o][r]);
  }
}

// One FP8 output group; x comes from ScaleRow. Returns whether a NaN code was among the weights.
template <int kOuts, int kRows>
HWY_INLINE bool Fp8Dot(const WeightView& w, int64_t n, int64_t stride, const float* const* x, float (*total)[kRows]) {
  const uint8_t* data[kOuts];
  for (int o = 0; o < kOuts; ++o) data[o] = w.data + (n + o * stride) * w.in;
  const int64_t ahead = Ahead(kOuts, stride, w.in);
  Fp8Largest largest;
  for (int64_t k0 = 0; k0 < w.in; k0 += kChunk) {
    const int64_t end = std::min(k0 + kChunk, w.in);
    Lanes<kOuts, kRows> lanes;
    Clear(lanes);
    int64_t k = k0;
    for (; k + 64 <= end; k += 64) {
      for (int o = 0; o < kOuts; ++o) {
        Prefetch(data[o] + k, ahead);
        largest.Look64(data[o] + k);
      }
      Fp8Step(data, k, x, lanes);
      Fp8Step(data, k + 32, x, lanes);
    }
    if (k < end) {
      for (int o = 0; o < kOuts; ++o) largest.Look32(data[o] + k);
      Fp8Step(data, k, x, lanes);
    }
    for (int o = 0; o < kOuts; ++o) {
      for (int r = 0; r < kRows; ++r) total[o][r] += v::ReduceSum(lanes.sum[o][r]);
    }
  }
  return largest.IsNan();
}

// bf16 and float32 weights; K is a multiple of 16.
template <bool kBf16, int kOuts, int kRows>
HWY_INLINE void PlainDot(const WeightView& w, int64_t n, int64_t stride, const float* const* x, float (*total)[kRows]) {
  constexpr int64_t kBytes = kBf16 ? 2 : 4;
  const uint8_t* data[kOuts];
  for (int o = 0; o < kOuts; ++o) data[o] = w.data + (n + o * stride) * w.in * kBytes;
  const int64_t ahead = Ahead(kOuts, stride, w.in * kBytes);
  for (int64_t k0 = 0; k0 < w.in; k0 += kChunk) {
    const int64_t end = std::min(k0 + kChunk, w.in);
    Lanes<kOuts, kRows> lanes;
    Clear(lanes);
    for (int64_t k = k0; k < end; k += 16) {
      v::F32x16 wv[kOuts];
      for (int o = 0; o < kOuts; ++o) {
        const uint8_t* p = data[o] + kBytes * k;
        Prefetch(p, ahead);
        wv[o] = kBf16 ? v::LoadBf16x16(p) : v::LoadStored16(p);
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

// Outputs n, n + stride, .. (kOuts of them) for rows [row, row + kRows). False: a NaN weight code, nothing was written.
template <WeightFormat kFormat, int kOuts, int kRows>
HWY_NOINLINE bool Tile(const LinearSpan& p, int64_t n, int64_t stride, int64_t row) {
  const float* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = p.x[row + r];
  float total[kOuts][kRows] = {};
  if constexpr (kFormat == WeightFormat::kFp4) {
    Fp4Dot<kOuts, kRows>(p.weight, n, stride, x, total);
  } else if constexpr (kFormat == WeightFormat::kFp8) {
    if (Fp8Dot<kOuts, kRows>(p.weight, n, stride, x, total)) return false;
  } else {
    PlainDot<kFormat == WeightFormat::kBf16, kOuts, kRows>(p.weight, n, stride, x, total);
  }
  for (int r = 0; r < kRows; ++r) {
    float* y = p.y[row + r] + (n - p.y_first);
    for (int o = 0; o < kOuts; ++o) y[o * stride] = p.round_bf16 ? numerics::RoundToBf16(total[o][r]) : total[o][r];
  }
  return true;
}

// kOuts outputs for all rows, as many rows at a time as the registers hold; the weights are in L1 after the first.
template <WeightFormat kFormat, int kOuts>
bool Outputs(const LinearSpan& p, int64_t n, int64_t stride) {
  int64_t row = 0;
  for (; row + 4 <= p.rows; row += 4) {
    if (!Tile<kFormat, kOuts, 4>(p, n, stride, row)) return false;
  }
  if (row + 2 <= p.rows) {
    if (!Tile<kFormat, kOuts, 2>(p, n, stride, row)) return false;
    row += 2;
  }
  return row == p.rows || Tile<kFormat, kOuts, 1>(p, n, stride, row);
}

// Prepares a scale tile's x in scaled_x, whose rows lie `stride` floats apart. False: the kernel does not cover it.
bool ScaleTile(const LinearSpan& p, int64_t n, float* scaled, int64_t stride) {
  const int64_t count = p.weight.in / 32;
  const uint8_t* const scales = p.weight.scale + n / 32 * count;
  uint8_t top = 0;
  for (int64_t i = 0; i < count; ++i) top = std::max(top, scales[i]);
  if (top > kFp8TopScale) return false;
  for (int64_t r = 0; r < p.rows; ++r) {
    if (!ScaleRow(scales, p.weight.in, p.x[r], scaled + r * stride)) return false;
  }
  return true;
}

// Outputs n, n + stride, .. (count of them) by the other kernel.
void LeaveToPanel(const LinearSpan& span, int64_t n, int64_t stride, int64_t count) {
  LinearSpan part = span;
  if (stride == 1) {
    part.begin = n;
    part.end = n + count;
    return SpanByPanel(part);
  }
  for (int64_t i = 0; i < count; ++i) {
    part.begin = n + i * stride;
    part.end = part.begin + 1;
    SpanByPanel(part);
  }
}

// The whole span, with the panel for the outputs the kernels do not cover. scaled: rows * in floats for FP8.
template <WeightFormat kFormat, int kOuts>
void FormatSpan(const LinearSpan& span, float* scaled) {
  LinearSpan stream = span;
  const float* scaled_x[kSkinnyRows];
  if (kFormat == WeightFormat::kFp8) {
    for (int64_t r = 0; r < span.rows; ++r) scaled_x[r] = scaled + r * span.weight.in;
    stream.x = scaled_x;
  }
  for (int64_t n = span.begin; n < span.end;) {
    const int64_t tile_end = std::min(span.end, (n / 32 + 1) * 32);
    const bool covered = kFormat == WeightFormat::kFp8 ? ScaleTile(span, n, scaled, span.weight.in)
                                                       : kFormat == WeightFormat::kFp4 || span.weight.in % 16 == 0;
    const int64_t groups = (tile_end - n) / kOuts;
    const bool far = FarApart(kFormat, span.rows);
    const int64_t stride = far ? groups : 1, step = far ? 1 : kOuts;
    if (!covered) LeaveToPanel(span, n, 1, tile_end - n);
    for (int64_t i = 0; covered && i < groups; ++i) {
      if (!Outputs<kFormat, kOuts>(stream, n + i * step, stride)) LeaveToPanel(span, n + i * step, stride, kOuts);
    }
    for (int64_t i = n + kOuts * groups; covered && i < tile_end; ++i) {  // what kOuts does not divide
      if (!Outputs<kFormat, 1>(stream, i, 1)) LeaveToPanel(span, i, 1, 1);
    }
    n = tile_end;
  }
}

#if HWY_TARGET == HWY_AVX3
constexpr int kPlainOuts = 4;
#else
constexpr int kPlainOuts = 2;
#endif

void SkinnySpan(const LinearSpan& span, float* scaled) {
  switch (span.weight.format) {
    case WeightFormat::kFp4:
      return FormatSpan<WeightFormat::kFp4, 2>(span, scaled);
    case WeightFormat::kFp8:
      return FormatSpan<WeightFormat::kFp8, kPlainOuts>(span, scaled);
    case WeightFormat::kBf16:
      return FormatSpan<WeightFormat::kBf16, kPlainOuts>(span, scaled);
    case WeightFormat::kF32:
      return FormatSpan<WeightFormat::kF32, kPlainOuts>(span, scaled);
  }
}
#else
void SkinnySpan(const LinearSpan& span, float*) { SpanByPanel(span); }
#endif  // SENKO_LINEAR_DECODE

bool TargetIsAvx512() { return HWY_TARGET == HWY_AVX3; }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace senko::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace senko::ops {

HWY_EXPORT(SkinnySpan);
HWY_EXPORT(TargetIsAvx512);

bool HasDigitKernel() {
  static const bool has = CpuHasDigitKernel();
  return has && HWY_DYNAMIC_DISPATCH(TargetIsAvx512)();
}

void SpanByStream(const LinearSpan& span) {
  // Grows to the widest x seen and stays.
  thread_local Buffer<float> scaled;
  const size_t floats = static_cast<size_t>(kSkinnyRows * span.weight.in);
  if (span.weight.format == WeightFormat::kFp8 && scaled.size() < floats) scaled = Buffer<float>(floats);
  HWY_DYNAMIC_DISPATCH(SkinnySpan)(span, scaled.data());
}

}  // namespace senko::ops
#endif  // HWY_ONCE
