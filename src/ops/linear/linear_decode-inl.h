// Stored weights to F32x16, sixteen lanes in the canonical order (README.md), for AVX2 and AVX-512; other targets
// define SENKO_LINEAR_DECODE 0 and expand weights one by one. Included once per target.
#if defined(SENKO_OPS_LINEAR_LINEAR_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SENKO_OPS_LINEAR_LINEAR_DECODE_INL_H_
#undef SENKO_OPS_LINEAR_LINEAR_DECODE_INL_H_
#else
#define SENKO_OPS_LINEAR_LINEAR_DECODE_INL_H_
#endif

#include "numerics/bits.h"
#include "numerics/simd/lanes-inl.h"

#undef SENKO_LINEAR_DECODE
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
#define SENKO_LINEAR_DECODE 1
#else
#define SENKO_LINEAR_DECODE 0
#endif

#if SENKO_LINEAR_DECODE
HWY_BEFORE_NAMESPACE();
namespace senko::ops {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace v = numerics::HWY_NAMESPACE;

// Exact ue8m0 codes, one per 32-bit lane, to floats: code << 23, but 0 is 2^-127 and 255 is NaN, which both have the
// top mantissa bit set instead.
#if HWY_TARGET == HWY_AVX3
HWY_INLINE __m512 Ue8m0(__m512i code) {
  const __m512i ends = _mm512_and_si512(_mm512_add_epi32(code, _mm512_set1_epi32(1)), _mm512_set1_epi32(0xFE));
  const __mmask16 special = _mm512_testn_epi32_mask(ends, ends);
  const __m512i bits = _mm512_slli_epi32(code, 23);
  return _mm512_castsi512_ps(_mm512_mask_or_epi32(bits, special, bits, _mm512_set1_epi32(0x00400000)));
}
#else
HWY_INLINE __m256 Ue8m0(__m256i code) {
  const __m256i ends = _mm256_and_si256(_mm256_add_epi32(code, _mm256_set1_epi32(1)), _mm256_set1_epi32(0xFE));
  const __m256i special = _mm256_cmpeq_epi32(ends, _mm256_setzero_si256());
  const __m256i extra = _mm256_and_si256(special, _mm256_set1_epi32(0x00400000));
  return _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(code, 23), extra));
}
#endif

// 512 FP4 weights: t[j] holds in lane p the dword of columns 32 g + 8 j .. 32 g + 8 j + 7 of the lane's group g.
struct Fp4Block {
#if HWY_TARGET == HWY_AVX3
  __m512i t[4];
#else
  __m256i t[4][2];
#endif
};

// A 4 x 4 transposition of dwords inside every 128 bits: load q holds groups 4q .. 4q + 3.
HWY_INLINE Fp4Block LoadFp4Block(const uint8_t* HWY_RESTRICT p) {
  Fp4Block b;
#if HWY_TARGET == HWY_AVX3
  const __m512i v0 = _mm512_loadu_si512(p), v1 = _mm512_loadu_si512(p + 64);
  const __m512i v2 = _mm512_loadu_si512(p + 128), v3 = _mm512_loadu_si512(p + 192);
  const __m512i a = _mm512_unpacklo_epi32(v0, v1), c = _mm512_unpackhi_epi32(v0, v1);
  const __m512i d = _mm512_unpacklo_epi32(v2, v3), e = _mm512_unpackhi_epi32(v2, v3);
  b.t[0] = _mm512_unpacklo_epi64(a, d);
  b.t[1] = _mm512_unpackhi_epi64(a, d);
  b.t[2] = _mm512_unpacklo_epi64(c, e);
  b.t[3] = _mm512_unpackhi_epi64(c, e);
#else
  for (int half = 0; half < 2; ++half) {
    const __m256i* q = reinterpret_cast<const __m256i*>(p + 32 * half);
    const __m256i v0 = _mm256_loadu_si256(q), v1 = _mm256_loadu_si256(q + 2);
    const __m256i v2 = _mm256_loadu_si256(q + 4), v3 = _mm256_loadu_si256(q + 6);
    const __m256i a = _mm256_unpacklo_epi32(v0, v1), c = _mm256_unpackhi_epi32(v0, v1);
    const __m256i d = _mm256_unpacklo_epi32(v2, v3), e = _mm256_unpackhi_epi32(v2, v3);
    b.t[0][half] = _mm256_unpacklo_epi64(a, d);
    b.t[1][half] = _mm256_unpackhi_epi64(a, d);
    b.t[2][half] = _mm256_unpacklo_epi64(c, e);
    b.t[3][half] = _mm256_unpackhi_epi64(c, e);
  }
#endif
  return b;
}

// Column 8 j + i of every lane's group, unscaled.
template <int j, int i>
HWY_INLINE v::F32x16 Fp4Values(const Fp4Block& b) {
  v::F32x16 r;
#if HWY_TARGET == HWY_AVX3
  // The permutation looks at the low four bits of a lane only.
  const __m512 table = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f,
                                      -3.0f, -4.0f, -6.0f);
  const __m512i index = i == 0 ? b.t[j] : _mm512_srli_epi32(b.t[j], 4 * i);
  r.part[0] = hn::Vec<v::NativeF32>{_mm512_permutexvar_ps(index, table)};
#else
  // The low three bits pick the magnitude, the fourth is the sign.
  const __m256 table = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
  const __m256 sign_bit = _mm256_set1_ps(-0.0f);
  for (int half = 0; half < 2; ++half) {
    const __m256i index = i == 0 ? b.t[j][half] : _mm256_srli_epi32(b.t[j][half], 4 * i);
    const __m256i sign = i == 7 ? b.t[j][half] : _mm256_slli_epi32(b.t[j][half], 28 - 4 * i);
    const __m256 magnitude = _mm256_permutevar8x32_ps(table, index);
    const __m256 value = _mm256_xor_ps(magnitude, _mm256_and_ps(_mm256_castsi256_ps(sign), sign_bit));
    r.part[half] = hn::Vec<v::NativeF32>{value};
  }
#endif
  return r;
}

// A block's sixteen scales, lane p taking group 4 (p % 4) + p / 4.
HWY_INLINE v::F32x16 Fp4Scales(const uint8_t* HWY_RESTRICT p) {
  const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m128i codes = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), order);
  v::F32x16 r;
#if HWY_TARGET == HWY_AVX3
  r.part[0] = hn::Vec<v::NativeF32>{Ue8m0(_mm512_cvtepu8_epi32(codes))};
#else
  r.part[0] = hn::Vec<v::NativeF32>{Ue8m0(_mm256_cvtepu8_epi32(codes))};
  r.part[1] = hn::Vec<v::NativeF32>{Ue8m0(_mm256_cvtepu8_epi32(_mm_srli_si128(codes, 8)))};
#endif
  return r;
}

// e4m3 codes as fp16 are value * 2^-8, subnormals included: sign-extend, shift the magnitude to fp16's place, clear
// the copy of the sign beside it. A NaN code comes out as a number: Fp8Largest finds it.
struct Fp8Pair {
  v::F32x16 first, second;  // columns 0..15 and 16..31, times 2^-8
};
HWY_INLINE Fp8Pair Fp8Values(__m256i codes) {
  Fp8Pair r;
#if HWY_TARGET == HWY_AVX3
  const __m512i wide = _mm512_slli_epi16(_mm512_cvtepi8_epi16(codes), 7);
  const __m512i half = _mm512_and_si512(wide, _mm512_set1_epi16(static_cast<int16_t>(0xBFFF)));
  r.first.part[0] = hn::Vec<v::NativeF32>{_mm512_cvtph_ps(_mm512_castsi512_si256(half))};
  r.second.part[0] = hn::Vec<v::NativeF32>{_mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1))};
#else
  const __m256i mask = _mm256_set1_epi16(static_cast<int16_t>(0xBFFF));
  const __m256i low = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(codes));
  const __m256i high = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(codes, 1));
  const __m256i half0 = _mm256_and_si256(_mm256_slli_epi16(low, 7), mask);
  const __m256i half1 = _mm256_and_si256(_mm256_slli_epi16(high, 7), mask);
  r.first.part[0] = hn::Vec<v::NativeF32>{_mm256_cvtph_ps(_mm256_castsi256_si128(half0))};
  r.first.part[1] = hn::Vec<v::NativeF32>{_mm256_cvtph_ps(_mm256_extracti128_si256(half0, 1))};
  r.second.part[0] = hn::Vec<v::NativeF32>{_mm256_cvtph_ps(_mm256_castsi256_si128(half1))};
  r.second.part[1] = hn::Vec<v::NativeF32>{_mm256_cvtph_ps(_mm256_extracti128_si256(half1, 1))};
#endif
  return r;
}

HWY_INLINE bool HasFp8Nan(__m256i codes) {
  const __m256i magnitude = _mm256_and_si256(codes, _mm256_set1_epi8(0x7F));
  return _mm256_movemask_epi8(_mm256_cmpeq_epi8(magnitude, _mm256_set1_epi8(0x7F))) != 0;
}

// Keeps the largest magnitude code seen in each byte.
class Fp8Largest {
 public:
#if HWY_TARGET == HWY_AVX3
  HWY_INLINE Fp8Largest() : largest_(_mm512_setzero_si512()) {}
#else
  HWY_INLINE Fp8Largest() : largest_(_mm256_setzero_si256()) {}
#endif
  HWY_INLINE void Look64(const uint8_t* HWY_RESTRICT p) {
#if HWY_TARGET == HWY_AVX3
    const __m512i magnitude = _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(0x7F));
    largest_ = _mm512_max_epu8(largest_, magnitude);
#else
    Look32(p);
    Look32(p + 32);
#endif
  }
  HWY_INLINE void Look32(const uint8_t* HWY_RESTRICT p) {
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i magnitude = _mm256_and_si256(codes, _mm256_set1_epi8(0x7F));
#if HWY_TARGET == HWY_AVX3
    largest_ = _mm512_max_epu8(largest_, _mm512_zextsi256_si512(magnitude));
#else
    largest_ = _mm256_max_epu8(largest_, magnitude);
#endif
  }
  // Whether a NaN code was among them.
  HWY_INLINE bool IsNan() const {
#if HWY_TARGET == HWY_AVX3
    return _mm512_cmpeq_epi8_mask(largest_, _mm512_set1_epi8(0x7F)) != 0;
#else
    return HasFp8Nan(largest_);
#endif
  }

 private:
#if HWY_TARGET == HWY_AVX3
  __m512i largest_;
#else
  __m256i largest_;
#endif
};

// 2^(code - 127) * 2^8, what Fp8Values is short of, and its inverse. Codes above kFp8TopScale lack one of them.
inline constexpr uint8_t kFp8TopScale = 245;
HWY_INLINE float Fp8Multiplier(uint8_t code) {
  return numerics::FloatFromBits((static_cast<uint32_t>(code) + 8u) << 23);
}
HWY_INLINE float Fp8Divisor(uint8_t code) {
  return numerics::FloatFromBits((246u - static_cast<uint32_t>(code)) << 23);
}

}  // namespace HWY_NAMESPACE
}  // namespace senko::ops
HWY_AFTER_NAMESPACE();
#endif  // SENKO_LINEAR_DECODE

#endif  // per-target include guard
