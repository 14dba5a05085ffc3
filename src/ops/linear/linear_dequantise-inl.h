// Expands stored weights to float panels in the canonical lane order (README.md). Included once per target.
#if defined(SENKO_OPS_LINEAR_LINEAR_DEQUANTISE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SENKO_OPS_LINEAR_LINEAR_DEQUANTISE_INL_H_
#undef SENKO_OPS_LINEAR_LINEAR_DEQUANTISE_INL_H_
#else
#define SENKO_OPS_LINEAR_LINEAR_DEQUANTISE_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/simd/lanes-inl.h"
#include "numerics/ue8m0.h"
#include "ops/linear/linear_decode-inl.h"
#include "ops/linear/linear_span.h"

HWY_BEFORE_NAMESPACE();
namespace senko::ops {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace v = numerics::HWY_NAMESPACE;

// Outputs per register tile.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON || HWY_TARGET == HWY_AVX2
inline constexpr int kTileOuts = 6;
#else
inline constexpr int kTileOuts = 3;
#endif
inline constexpr int64_t kPanelOuts = 96;                             // outputs per panel, a multiple of kTileOuts
inline constexpr int64_t kFp4Steps = kFp4BlockCols / 16;              // steps that share one scale per lane
inline constexpr int64_t kScaleFloats = kChunk / kFp4BlockCols * 16;  // FP4 scales per output and chunk
static_assert(kPanelOuts % kTileOuts == 0);

// Where one output's weights go: step s, lane l at values[s * kStep + l]; FP4 scales of block b at scales[b * kStep +
// l].
inline constexpr int64_t kStep = 16 * kTileOuts;

// One FP4 block of which `groups` (1..16) groups of 32 columns exist; the rest is zero. Values unscaled.
inline void Fp4BlockByValue(const uint8_t* data, const uint8_t* scale, int64_t groups, float* HWY_RESTRICT values,
                            float* HWY_RESTRICT scales) {
  for (int lane = 0; lane < 16; ++lane) {
    const int64_t group = lane % 4 * 4 + lane / 4;
    const bool inside = group < groups;
    scales[lane] = inside ? numerics::Ue8m0ToFloat(scale[group]) : 0.0f;
    for (int t = 0; t < 32; ++t) {
      const uint8_t pair = inside ? data[group * 16 + t / 2] : 0;
      values[t * kStep + lane] = numerics::E2m1ToFloat((t & 1) != 0 ? pair >> 4 : pair & 0xF);
    }
  }
}

// Thirty-two FP8 weights of one scale. Exact for every code and scale.
inline void Fp8GroupByValue(const uint8_t* data, uint8_t scale, float* HWY_RESTRICT values) {
  const float s = numerics::Ue8m0ToFloat(scale);
  for (int i = 0; i < 32; ++i) {
    values[i / 16 * kStep + i % 16] = numerics::MultiplyRn(numerics::E4m3ToFloat(data[i]), s);
  }
}

#if SENKO_LINEAR_DECODE
template <int j>
HWY_INLINE void StoreFp4Dword(const Fp4Block& b, float* HWY_RESTRICT values) {
  v::Store16(Fp4Values<j, 0>(b), values);
  v::Store16(Fp4Values<j, 1>(b), values + kStep);
  v::Store16(Fp4Values<j, 2>(b), values + 2 * kStep);
  v::Store16(Fp4Values<j, 3>(b), values + 3 * kStep);
  v::Store16(Fp4Values<j, 4>(b), values + 4 * kStep);
  v::Store16(Fp4Values<j, 5>(b), values + 5 * kStep);
  v::Store16(Fp4Values<j, 6>(b), values + 6 * kStep);
  v::Store16(Fp4Values<j, 7>(b), values + 7 * kStep);
}
#endif

inline void DequantiseFp4(const WeightView& w, int64_t n, int64_t k0, int64_t count, float* HWY_RESTRICT values,
                          float* HWY_RESTRICT scales) {
  const uint8_t* data = w.data + n * (w.in / 2) + k0 / 2;
  const uint8_t* scale = w.scale + n * (w.in / 32) + k0 / 32;
  for (int64_t k = 0; k < count; k += kFp4BlockCols) {
#if SENKO_LINEAR_DECODE
    if (k + kFp4BlockCols <= count) {
      const Fp4Block b = LoadFp4Block(data + k / 2);
      StoreFp4Dword<0>(b, values);
      StoreFp4Dword<1>(b, values + 8 * kStep);
      StoreFp4Dword<2>(b, values + 16 * kStep);
      StoreFp4Dword<3>(b, values + 24 * kStep);
      v::Store16(Fp4Scales(scale + k / 32), scales);
    } else {
      Fp4BlockByValue(data + k / 2, scale + k / 32, (count - k) / 32, values, scales);
    }
#else
    Fp4BlockByValue(data + k / 2, scale + k / 32, std::min<int64_t>(16, (count - k) / 32), values, scales);
#endif
    values += kFp4Steps * kStep;
    scales += kStep;
  }
}

inline void DequantiseFp8(const WeightView& w, int64_t n, int64_t k0, int64_t count, float* HWY_RESTRICT values) {
  const uint8_t* data = w.data + n * w.in + k0;
  const uint8_t* scale = w.scale + n / 32 * (w.in / 32) + k0 / 32;
  for (int64_t k = 0; k < count; k += 32, values += 2 * kStep) {
    const uint8_t code = scale[k / 32];
#if SENKO_LINEAR_DECODE
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + k));
    if (code <= kFp8TopScale && !HasFp8Nan(codes)) {
      const Fp8Pair pair = Fp8Values(codes);
      const v::F32x16 multiplier = v::Set16(Fp8Multiplier(code));
      v::Store16(v::Mul(pair.first, multiplier), values);
      v::Store16(v::Mul(pair.second, multiplier), values + kStep);
      continue;
    }
#endif
    Fp8GroupByValue(data + k, code, values);
  }
}

// bf16 and float32, padded with zeros to a whole step.
inline void DequantisePlain(const WeightView& w, int64_t n, int64_t k0, int64_t count, float* HWY_RESTRICT values) {
  const bool bf16 = w.format == WeightFormat::kBf16;
  const int64_t bytes = bf16 ? 2 : 4;
  const uint8_t* data = w.data + (n * w.in + k0) * bytes;
  for (int64_t k = 0; k < count; k += 16, values += kStep, data += 16 * bytes) {
    alignas(64) uint8_t tail[64] = {};
    const uint8_t* p = data;
    if (count - k < 16) {
      std::memcpy(tail, data, static_cast<size_t>((count - k) * bytes));
      p = tail;
    }
    v::Store16(bf16 ? v::LoadBf16x16(p) : v::LoadStored16(p), values);
  }
}

// Columns [k0, k0 + count) of output n, count <= kChunk, into one output's place of a panel tile, zero-padded to whole
// steps (whole 512-column blocks for FP4). FP4 values are written unscaled, their scales beside them.
inline void DequantiseRow(const WeightView& w, int64_t n, int64_t k0, int64_t count, float* HWY_RESTRICT values,
                          float* HWY_RESTRICT scales) {
  switch (w.format) {
    case WeightFormat::kFp4:
      return DequantiseFp4(w, n, k0, count, values, scales);
    case WeightFormat::kFp8:
      return DequantiseFp8(w, n, k0, count, values);
    default:
      return DequantisePlain(w, n, k0, count, values);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace senko::ops
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
