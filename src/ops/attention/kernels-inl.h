// The two register-blocked products of attention. All heads share the keys, so both are small matrix products, and
// every output is one chain of fused multiply-adds in a fixed order: no blocking below changes a bit.
// Included once per target.
#if defined(SENKO_OPS_ATTENTION_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SENKO_OPS_ATTENTION_KERNELS_INL_H_
#undef SENKO_OPS_ATTENTION_KERNELS_INL_H_
#else
#define SENKO_OPS_ATTENTION_KERNELS_INL_H_
#endif

#include "numerics/simd/lanes-inl.h"
#include "ops/attention/key_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace senko::ops::HWY_NAMESPACE {

// Heads and sixteen-lane columns of a register tile: sixteen zmm or eight ymm accumulators.
#if HWY_TARGET == HWY_AVX3
inline constexpr int kTileHeads = 8;
inline constexpr int kTileColumns = 2;
#else
inline constexpr int kTileHeads = 4;
inline constexpr int kTileColumns = 1;
#endif

// scores[m * stride + k] = scale * sum over d of q[d * kTileHeads + m] * keys[d * kPanel + k].
HWY_INLINE void ScoreTile(const float* HWY_RESTRICT q, const float* HWY_RESTRICT keys, int64_t dim, float scale,
                          float* HWY_RESTRICT scores, int64_t stride) {
  for (int64_t k = 0; k < kPanel; k += 16 * kTileColumns) {
    v::F32x16 sum[kTileHeads][kTileColumns];
    for (int m = 0; m < kTileHeads; ++m) {
      for (int j = 0; j < kTileColumns; ++j) sum[m][j] = v::Zero16();
    }
    for (int64_t d = 0; d < dim; ++d) {
      v::F32x16 key[kTileColumns];
      for (int j = 0; j < kTileColumns; ++j) key[j] = v::Load16(keys + d * kPanel + k + 16 * j);
      for (int m = 0; m < kTileHeads; ++m) {
        const v::F32x16 head = v::Set16(q[d * kTileHeads + m]);
        for (int j = 0; j < kTileColumns; ++j) sum[m][j] = v::MulAdd(head, key[j], sum[m][j]);
      }
    }
    for (int m = 0; m < kTileHeads; ++m) {
      for (int j = 0; j < kTileColumns; ++j) {
        v::Store16(v::Mul(sum[m][j], v::Set16(scale)), scores + m * stride + k + 16 * j);
      }
    }
  }
}

// out[m * out_stride + c] (+)= sum over k < num_keys of weights[m * weight_stride + k] * values[k * kPanel + c] for
// the first `heads` <= kTileHeads heads.
HWY_INLINE void ValueTile(const float* HWY_RESTRICT weights, int64_t weight_stride, int64_t heads,
                          const float* HWY_RESTRICT values, int64_t num_keys, bool add, float* HWY_RESTRICT out,
                          int64_t out_stride) {
  const float* weight[kTileHeads];
  for (int m = 0; m < kTileHeads; ++m) weight[m] = weights + (m < heads ? m : 0) * weight_stride;
  for (int64_t c = 0; c < kPanel; c += 16 * kTileColumns) {
    v::F32x16 sum[kTileHeads][kTileColumns];
    for (int m = 0; m < kTileHeads; ++m) {
      for (int j = 0; j < kTileColumns; ++j) sum[m][j] = v::Zero16();
    }
    for (int64_t k = 0; k < num_keys; ++k) {
      v::F32x16 value[kTileColumns];
      for (int j = 0; j < kTileColumns; ++j) value[j] = v::Load16(values + k * kPanel + c + 16 * j);
      for (int m = 0; m < kTileHeads; ++m) {
        const v::F32x16 head = v::Set16(weight[m][k]);
        for (int j = 0; j < kTileColumns; ++j) sum[m][j] = v::MulAdd(head, value[j], sum[m][j]);
      }
    }
    for (int m = 0; m < kTileHeads; ++m) {
      if (m >= heads) break;
      for (int j = 0; j < kTileColumns; ++j) {
        float* to = out + m * out_stride + c + 16 * j;
        v::StoreU16(add ? v::Add(v::LoadU16(to), sum[m][j]) : sum[m][j], to);
      }
    }
  }
}

}  // namespace senko::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
