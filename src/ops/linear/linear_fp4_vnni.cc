// The skinny FP4 kernel on AVX-512 with VNNI and VBMI: weights become bytes (one lookup for 64 of them) and are
// multiplied with the digits of x, 64 products per instruction. A block of x without digits is multiplied in floats.
// Gives the bits of linear_skinny.cc and linear_panel.cc.
#include "ops/linear/linear_fp4_digits.h"

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// gcc 12's AVX-512 headers build "undefined" vectors from themselves and warn about it.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "hwy/base.h"
#include "numerics/bf16.h"

HWY_PUSH_ATTRIBUTES("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")
namespace senko::ops {
namespace {

// The first `groups` (1..15; all 16 if kWhole) groups of the block at p, zeros after them, transposed: t[j] holds in
// lane p the dword of columns 8 j .. 8 j + 7 of the lane's group.
template <bool kWhole>
inline void LoadBlock(const uint8_t* p, int64_t groups, __m512i* t) {
  __m512i v[4];
  for (int q = 0; q < 4; ++q) {
    if constexpr (kWhole) {
      v[q] = _mm512_loadu_si512(p + 64 * q);
    } else {
      const int64_t bytes = std::clamp<int64_t>(16 * groups - 64 * q, 0, 64);
      v[q] = _mm512_maskz_loadu_epi8(bytes == 64 ? ~__mmask64{0} : (__mmask64{1} << bytes) - 1, p + 64 * q);
    }
  }
  const __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), c = _mm512_unpackhi_epi32(v[0], v[1]);
  const __m512i d = _mm512_unpacklo_epi32(v[2], v[3]), e = _mm512_unpackhi_epi32(v[2], v[3]);
  t[0] = _mm512_unpacklo_epi64(a, d);
  t[1] = _mm512_unpackhi_epi64(a, d);
  t[2] = _mm512_unpacklo_epi64(c, e);
  t[3] = _mm512_unpackhi_epi64(c, e);
}

// Scales in lane order, exact (linear_decode-inl.h, Ue8m0).
template <bool kWhole>
inline __m512 LoadScales(const uint8_t* p, int64_t groups) {
  const __m128i codes = kWhole ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(p))
                               : _mm_maskz_loadu_epi8(static_cast<__mmask16>((1u << groups) - 1), p);
  // Code 4 (l mod 4) + l / 4 to the third byte of lane l.
  const __m512i order = _mm512_setr_epi32(0 << 16, 4 << 16, 8 << 16, 12 << 16, 1 << 16, 5 << 16, 9 << 16, 13 << 16,
                                          2 << 16, 6 << 16, 10 << 16, 14 << 16, 3 << 16, 7 << 16, 11 << 16, 15 << 16);
  const __m512i spread = _mm512_maskz_permutexvar_epi8(0x4444444444444444, order, _mm512_castsi128_si512(codes));
  const __mmask16 special =
      _mm512_testn_epi32_mask(_mm512_add_epi32(spread, _mm512_set1_epi32(1 << 16)), _mm512_set1_epi32(0xFE << 16));
  const __m512i bits = _mm512_slli_epi32(spread, 7);
  return _mm512_castsi512_ps(_mm512_mask_or_epi32(bits, special, bits, _mm512_set1_epi32(0x00400000)));
}

// 2 w + 12 for a code in the low four bits of a byte; a lookup takes six bits, of which two are the next code's.
inline __m512i ByteTable() {
  return _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
}

// The groups' sums for one row whose block has no digits: x in lane order, ascending columns.
template <int kOuts>
HWY_NOINLINE void FloatParts(const __m512i (*t)[4], const float* x, __m512* part) {
  const __m512 table = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f,
                                      -3.0f, -4.0f, -6.0f);
  __m512 sum[kOuts];
  for (int o = 0; o < kOuts; ++o) sum[o] = _mm512_setzero_ps();
  for (int j = 0; j < 4; ++j) {
    __m512i codes[kOuts];
    for (int o = 0; o < kOuts; ++o) codes[o] = t[o][j];
    for (int i = 0; i < 8; ++i) {
      const __m512 xv = _mm512_loadu_ps(x + 16 * (8 * j + i));
      for (int o = 0; o < kOuts; ++o) {
        sum[o] = _mm512_fmadd_ps(xv, _mm512_permutexvar_ps(codes[o], table), sum[o]);
        codes[o] = _mm512_srli_epi32(codes[o], 4);
      }
    }
  }
  for (int o = 0; o < kOuts; ++o) part[o] = sum[o];
}

template <int kDigits, int kOuts, int kRows>
struct DigitSums {
  __m512i sum[kOuts][kRows][kDigits];
};

// Columns 8 j + 2 i + p, i = 0..3, of every group.
template <int j, int p, int kDigits, int kOuts, int kRows>
inline void DigitStep(const __m512i (&t)[kOuts][4], __m512i table, const Fp4Digits* const* x,
                      DigitSums<kDigits, kOuts, kRows>& s) {
  __m512i w[kOuts];
  for (int o = 0; o < kOuts; ++o) {
    w[o] = _mm512_permutexvar_epi8(p == 0 ? t[o][j] : _mm512_srli_epi16(t[o][j], 4), table);
  }
  for (int r = 0; r < kRows; ++r) {
    for (int d = 0; d < kDigits; ++d) {
      const __m512i digits = _mm512_loadu_si512(x[r]->digit[d][2 * j + p]);
      for (int o = 0; o < kOuts; ++o) s.sum[o][r][d] = _mm512_dpbusd_epi32(s.sum[o][r][d], w[o], digits);
    }
  }
}

// The groups' sums by digits.
template <int kDigits, int kOuts, int kRows>
inline void DigitParts(const __m512i (&t)[kOuts][4], const Fp4Digits* const* x, __m512 (&part)[kOuts][kRows]) {
  const __m512i table = ByteTable();
  DigitSums<kDigits, kOuts, kRows> s;
  for (int o = 0; o < kOuts; ++o) {
    for (int r = 0; r < kRows; ++r) {
      for (int d = 0; d < kDigits; ++d) s.sum[o][r][d] = _mm512_loadu_si512(x[r]->offset[d]);
    }
  }
  DigitStep<0, 0>(t, table, x, s);
  DigitStep<0, 1>(t, table, x, s);
  DigitStep<1, 0>(t, table, x, s);
  DigitStep<1, 1>(t, table, x, s);
  DigitStep<2, 0>(t, table, x, s);
  DigitStep<2, 1>(t, table, x, s);
  DigitStep<3, 0>(t, table, x, s);
  DigitStep<3, 1>(t, table, x, s);
  for (int r = 0; r < kRows; ++r) {
    const __m512 half_unit = _mm512_loadu_ps(x[r]->half_unit);
    for (int o = 0; o < kOuts; ++o) {
      __m512i total = _mm512_add_epi32(s.sum[o][r][0], _mm512_slli_epi32(s.sum[o][r][1], 8));
      if constexpr (kDigits == 3) total = _mm512_add_epi32(total, _mm512_slli_epi32(s.sum[o][r][2], 16));
      part[o][r] = _mm512_mul_ps(_mm512_cvtepi32_ps(total), half_unit);
    }
  }
}

// The canonical tree (numerics/simd/lanes-inl.h).
inline float ReduceSum(__m512 v) {
  const __m256 h8 = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 h4 = _mm_add_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
  const __m128 h2 = _mm_add_ps(h4, _mm_movehl_ps(h4, h4));
  return _mm_cvtss_f32(_mm_add_ss(h2, _mm_shuffle_ps(h2, h2, 1)));
}

inline __m128 ReduceSum4(const __m512* a) {
  const __m512 h01 = _mm512_add_ps(_mm512_shuffle_f32x4(a[0], a[1], 0x44), _mm512_shuffle_f32x4(a[0], a[1], 0xEE));
  const __m512 h23 = _mm512_add_ps(_mm512_shuffle_f32x4(a[2], a[3], 0x44), _mm512_shuffle_f32x4(a[2], a[3], 0xEE));
  const __m512 q = _mm512_add_ps(_mm512_shuffle_f32x4(h01, h23, 0x88), _mm512_shuffle_f32x4(h01, h23, 0xDD));
  const __m512 d = _mm512_add_ps(q, _mm512_permute_ps(q, 0x4E));
  const __m512 s = _mm512_add_ps(d, _mm512_permute_ps(d, 0xB1));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  return _mm512_castps512_ps128(_mm512_permutexvar_ps(order, s));
}

// Digits of the lane that has most; 0 where a lane has none.
inline int DigitsOfBlock(const Fp4Digits& x) {
  constexpr uint64_t kEach = 0x0101010101010101;
  uint64_t d[2];
  std::memcpy(d, x.digits, sizeof(d));
  if (d[0] == 2 * kEach && d[1] == 2 * kEach) return 2;
  return ((d[0] & d[1] & 2 * kEach) != 2 * kEach) ? 0 : 3;
}

// kOuts outputs of one weight: weights and scales of the first at columns k .., and what lies between two of them.
struct BlockWeights {
  const uint8_t *data, *scale;
  int64_t data_stride, scale_stride;
};

// Adds the block at column k to the lanes of kRows rows of packed x. Prefetches what follows in each output's row, into
// the next output's if need be.
template <bool kWhole, int kOuts, int kRows>
inline void AddBlock(const BlockWeights& w, const float* const* packed, int64_t in, int64_t k, int64_t groups,
                     __m512 (&lanes)[kOuts][kRows]) {
  const Fp4Digits* x[kRows];
  int digits[kRows], most = 0;
  for (int r = 0; r < kRows; ++r) {
    x[r] = &DigitsOf(packed[r], in, k / kFp4BlockCols);
    digits[r] = DigitsOfBlock(*x[r]);
    most = std::max(most, digits[r]);
  }
  __m512i t[kOuts][4];
  for (int o = 0; o < kOuts; ++o) {
    const uint8_t* data = w.data + o * w.data_stride + k / 2;
    for (int line = 0; line < 256; line += 64) {
      const uintptr_t at = reinterpret_cast<uintptr_t>(data) + line;       // a pointer may not leave its array
      _mm_prefetch(reinterpret_cast<const char*>(at + 512), _MM_HINT_T0);  // distances measured
      _mm_prefetch(reinterpret_cast<const char*>(at + 2048), _MM_HINT_T1);
    }
    LoadBlock<kWhole>(data, groups, t[o]);
  }
  __m512 part[kOuts][kRows];
  if (most == 2) {
    DigitParts<2, kOuts, kRows>(t, x, part);
  } else if (most == 3) {
    DigitParts<3, kOuts, kRows>(t, x, part);
  }
  for (int r = 0; r < kRows; ++r) {
    if (digits[r] != 0) continue;
    __m512 sums[kOuts];
    FloatParts<kOuts>(t, packed[r] + k, sums);
    for (int o = 0; o < kOuts; ++o) part[o][r] = sums[o];
  }
  for (int o = 0; o < kOuts; ++o) {
    const __m512 scale = LoadScales<kWhole>(w.scale + o * w.scale_stride + k / 32, groups);
    for (int r = 0; r < kRows; ++r) lanes[o][r] = _mm512_fmadd_ps(part[o][r], scale, lanes[o][r]);
  }
}

// Adds the chunk at k0 of rows [row, row + kRows) and kOuts outputs `stride` apart, the first of them `n`, to
// total[o * kSkinnyRows + r].
template <int kOuts, int kRows>
HWY_NOINLINE void AddChunk(const LinearSpan& p, int64_t n, int64_t stride, int64_t row, int64_t k0, float* total) {
  const WeightView& weight = p.weight;
  const BlockWeights w = {weight.data + n * (weight.in / 2), weight.scale + n * (weight.in / 32),
                          stride * (weight.in / 2), stride * (weight.in / 32)};
  const int64_t end = std::min(k0 + kChunk, weight.in);
  const float* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = p.x[row + r];
  __m512 lanes[kOuts][kRows];
  for (auto& out : lanes) {
    for (__m512& lane : out) lane = _mm512_setzero_ps();
  }
  int64_t k = k0;
  for (; k + kFp4BlockCols <= end; k += kFp4BlockCols) AddBlock<true>(w, x, weight.in, k, 16, lanes);
  if (k < end) AddBlock<false>(w, x, weight.in, k, (end - k) / 32, lanes);
  float sums[kOuts * kRows];
  const __m512* const flat = &lanes[0][0];
  if constexpr (kOuts * kRows % 4 == 0) {
    for (int i = 0; i < kOuts * kRows; i += 4) _mm_storeu_ps(sums + i, ReduceSum4(flat + i));
  } else {
    for (int i = 0; i < kOuts * kRows; ++i) sums[i] = ReduceSum(flat[i]);
  }
  for (int o = 0; o < kOuts; ++o) {
    for (int r = 0; r < kRows; ++r) total[o * kSkinnyRows + r] += sums[o * kRows + r];
  }
}

// Outputs n, n + stride, .. (kOuts of them, 1 or 4) for all rows; a chunk's weights are in L1 after the first rows.
template <int kOuts>
void Outputs(const LinearSpan& p, int64_t n, int64_t stride) {
  float total[kOuts * kSkinnyRows] = {};
  for (int64_t k0 = 0; k0 < p.weight.in; k0 += kChunk) {
    int64_t r = 0;
    if constexpr (kOuts == 4) {
      for (; r + 4 <= p.rows; r += 4) {  // the sums of two outputs fill the registers
        AddChunk<2, 4>(p, n, stride, r, k0, total + r);
        AddChunk<2, 4>(p, n + 2 * stride, stride, r, k0, total + 2 * kSkinnyRows + r);
      }
      for (; r + 2 <= p.rows; r += 2) AddChunk<4, 2>(p, n, stride, r, k0, total + r);
    }
    for (; r < p.rows; ++r) AddChunk<kOuts, 1>(p, n, stride, r, k0, total + r);
  }
  for (int64_t r = 0; r < p.rows; ++r) {
    float* y = p.y[r] + (n - p.y_first);
    for (int o = 0; o < kOuts; ++o) {
      const float sum = total[o * kSkinnyRows + r];
      y[o * stride] = p.round_bf16 ? numerics::RoundToBf16(sum) : sum;
    }
  }
}

}  // namespace

// Outputs far apart are read at a time: the processor fetches ahead by page, and several outputs in one page would look
// like disorder to it.
void SpanByDigits(const LinearSpan& p) {
  SENKO_CHECK(p.rows <= kSkinnyRows);
  const int64_t stride = (p.end - p.begin) / 4;
  for (int64_t n = p.begin; n < p.begin + stride; ++n) Outputs<4>(p, n, stride);
  for (int64_t n = p.begin + 4 * stride; n < p.end; ++n) Outputs<1>(p, n, 1);
}

}  // namespace senko::ops
HWY_POP_ATTRIBUTES

namespace senko::ops {
bool CpuHasDigitKernel() { return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi"); }
}  // namespace senko::ops
#else
#include "base/check.h"

namespace senko::ops {
bool CpuHasDigitKernel() { return false; }
void SpanByDigits(const LinearSpan&) { SENKO_CHECK(false); }
}  // namespace senko::ops
#endif
