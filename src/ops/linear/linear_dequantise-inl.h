// Expands stored weights to float panels in the canonical lane order (README.md). Included once per target.
#if defined(SENKO_OPS_LINEAR_LINEAR_DEQUANTISE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SENKO_OPS_LINEAR_LINEAR_DEQUANTISE_INL_H_
#undef SENKO_OPS_LINEAR_LINEAR_DEQUANTISE_INL_H_
#else
#define SENKO_OPS_LINEAR_LINEAR_DEQUANTISE_INL_H_
#endif

#include <cstring>

#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/simd/lanes-inl.h"
#include "numerics/ue8m0.h"
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
inline constexpr int64_t kPanelOuts = 96;                // outputs per panel, a multiple of kTileOuts
inline constexpr int64_t kFp4Steps = kFp4BlockCols / 16;  // steps that share one scale per lane
inline constexpr int64_t kScaleFloats = kChunk / kFp4BlockCols * 16;  // FP4 scales per output and chunk
static_assert(kPanelOuts % kTileOuts == 0);

// Columns [k0, k0 + count) of output n, count <= kChunk, into out[step * kTileOuts * 16 + lane], zero-padded to whole
// steps (whole 512-column blocks for FP4). FP4 values are written unscaled; scales[block * kTileOuts * 16 + lane].
inline void DequantiseRow(const WeightView& w, int64_t n, int64_t k0, int64_t count, float* HWY_RESTRICT out,
                          float* HWY_RESTRICT scales) {
  constexpr int64_t kStep = 16 * kTileOuts;
  const uint8_t* data = w.data + n * w.row_bytes();
  if (w.format == WeightFormat::kFp4) {
    for (int64_t block = 0; block * kFp4BlockCols < count; ++block) {
      for (int lane = 0; lane < 16; ++lane) {
        const int64_t group = lane % 4 * 4 + lane / 4;
        const int64_t k = k0 + block * kFp4BlockCols + group * 32;
        const bool inside = k < k0 + count;
        scales[block * kStep + lane] = inside ? numerics::Ue8m0ToFloat(w.scale[n * (w.in / 32) + k / 32]) : 0.0f;
        for (int t = 0; t < 32; ++t) {
          const uint8_t pair = inside ? data[(k + t) / 2] : 0;
          out[(block * kFp4Steps + t) * kStep + lane] = numerics::E2m1ToFloat((t & 1) != 0 ? pair >> 4 : pair & 0xF);
        }
      }
    }
    return;
  }
  const int64_t padded = (count + 15) / 16 * 16;
  const uint8_t* scale_row = w.format == WeightFormat::kFp8 ? w.scale + n / 32 * ((w.in + 31) / 32) : nullptr;
  for (int64_t i = 0; i < padded; ++i) {
    const int64_t k = k0 + i;
    float value = 0;
    if (i < count) {
      if (w.format == WeightFormat::kFp8) {
        value = numerics::MultiplyRn(numerics::E4m3ToFloat(data[k]), numerics::Ue8m0ToFloat(scale_row[k / 32]));
      } else if (w.format == WeightFormat::kBf16) {
        uint16_t code;
        std::memcpy(&code, data + 2 * k, sizeof(code));
        value = numerics::Bf16ToFloat(code);
      } else {
        std::memcpy(&value, data + 4 * k, sizeof(value));
      }
    }
    out[i / 16 * kStep + i % 16] = value;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace senko::ops
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
