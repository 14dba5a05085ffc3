// The two register-blocked products of attention. All heads share the keys, so both are small matrix
// products, and every output is one chain of fused multiply-adds in a fixed order: no blocking below changes
// a bit. Included once per target.
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

// Rows of a register tile. Missing heads repeat the last one and are not stored.
HWY_INLINE void TileRows(const float* first, int64_t stride, int64_t heads, const float** rows) {
  for (int m = 0; m < kTileHeads; ++m) rows[m] = first + (m < heads ? m : heads - 1) * stride;
}

// sum[m][j] += sum over i < count of left[m][i] * right[i * kPanel + 16 j ..], i in order.
HWY_INLINE void MultiplyTile(const float* const* left, const float* HWY_RESTRICT right, int64_t count,
                             v::F32x16 (&sum)[kTileHeads][kTileColumns]) {
  for (int64_t i = 0; i < count; ++i) {
    v::F32x16 column[kTileColumns];
    for (int j = 0; j < kTileColumns; ++j) column[j] = v::Load16(right + i * kPanel + 16 * j);
    for (int m = 0; m < kTileHeads; ++m) {
      const v::F32x16 head = v::Set16(left[m][i]);
      for (int j = 0; j < kTileColumns; ++j) sum[m][j] = v::MulAdd(head, column[j], sum[m][j]);
    }
  }
}

// scores[m * stride + k] = scale * (q row m . key k) for the first `heads` rows and kPanel keys. keys is
// [dim][kPanel]; a q row's channels from `tail` on lie in its row of `rotated`.
HWY_INLINE void ScoreTile(const float* q, const float* rotated, int64_t tail, int64_t dim, int64_t heads,
                          const float* HWY_RESTRICT keys, float scale, float* HWY_RESTRICT scores, int64_t stride) {
  const float* head_rows[kTileHeads];
  const float* rotated_rows[kTileHeads];
  TileRows(q, dim, heads, head_rows);
  TileRows(rotated, dim - tail, heads, rotated_rows);
  for (int64_t k = 0; k < kPanel; k += 16 * kTileColumns) {
    v::F32x16 sum[kTileHeads][kTileColumns];
    for (int m = 0; m < kTileHeads; ++m) {
      for (int j = 0; j < kTileColumns; ++j) sum[m][j] = v::Zero16();
    }
    MultiplyTile(head_rows, keys + k, tail, sum);
    MultiplyTile(rotated_rows, keys + tail * kPanel + k, dim - tail, sum);
    for (int m = 0; m < kTileHeads; ++m) {
      if (m >= heads) break;
      for (int j = 0; j < kTileColumns; ++j) {
        v::Store16(v::Mul(sum[m][j], v::Set16(scale)), scores + m * stride + k + 16 * j);
      }
    }
  }
}

// out[m * out_stride + c] (+)= sum over k < num_keys of weights[m * weight_stride + k] * values[k * kPanel +
// c] for the first `heads` <= kTileHeads heads.
HWY_INLINE void ValueTile(const float* HWY_RESTRICT weights, int64_t weight_stride, int64_t heads,
                          const float* HWY_RESTRICT values, int64_t num_keys, bool add, float* HWY_RESTRICT out,
                          int64_t out_stride) {
  const float* rows[kTileHeads];
  TileRows(weights, weight_stride, heads, rows);
  for (int64_t c = 0; c < kPanel; c += 16 * kTileColumns) {
    v::F32x16 sum[kTileHeads][kTileColumns];
    for (int m = 0; m < kTileHeads; ++m) {
      for (int j = 0; j < kTileColumns; ++j) sum[m][j] = v::Zero16();
    }
    MultiplyTile(rows, values + c, num_keys, sum);
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
