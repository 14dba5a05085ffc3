// A group of x to digits (linear_fp4_digits.h), 32 columns at a time.
#include "ops/linear/linear_fp4_digits.h"

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// gcc 12's AVX-512 headers build "undefined" vectors from themselves and warn about it.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <bit>
#include <cstring>

#include "hwy/base.h"

HWY_PUSH_ATTRIBUTES("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")
namespace senko::ops {
namespace {

constexpr int kMaxExponent = 100;  // of x: with units of 2^-120 or more no sum is subnormal or infinite

struct Group {
  __m512i first, second;  // X of columns 0..15 and 16..31
};

inline __m512i Magnitude(__m512i x) { return _mm512_abs_epi32(x); }

// X in units of 2^-shift; false where that is not whole.
inline bool InUnits(__m512 first, __m512 second, int shift, Group& group) {
  const __m512 per_unit = _mm512_castsi512_ps(_mm512_set1_epi32((127 + shift) << 23));
  const __m512 a = _mm512_mul_ps(first, per_unit), b = _mm512_mul_ps(second, per_unit);
  group = {_mm512_cvttps_epi32(a), _mm512_cvttps_epi32(b)};
  return (_mm512_cmp_ps_mask(_mm512_cvtepi32_ps(group.first), a, _CMP_NEQ_UQ) |
          _mm512_cmp_ps_mask(_mm512_cvtepi32_ps(group.second), b, _CMP_NEQ_UQ)) == 0;
}

// Whether every partial sum of |X| * 12, the largest doubled weight, is at most 2^24 times what all X are multiples of.
inline bool SumsAreExact(const Group& group) {
  const __m512i a = Magnitude(group.first), b = Magnitude(group.second);
  const uint32_t bits = static_cast<uint32_t>(_mm512_reduce_or_epi32(_mm512_or_si512(a, b)));
  const int64_t sum = _mm512_reduce_add_epi32(_mm512_add_epi32(a, b));
  return 12 * sum <= int64_t{1} << (24 + std::countr_zero(bits));
}

// 0, 2 or 3 digits, X, and the exponent of the unit.
inline uint8_t FindDigits(__m512 first, __m512 second, Group& group, int& unit) {
  group = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  unit = 0;
  const __m512i sign = _mm512_set1_epi32(0x7FFFFFFF);
  const __m512i magnitude = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(first), sign),
                                             _mm512_and_si512(_mm512_castps_si512(second), sign));
  const uint32_t largest = _mm512_reduce_max_epu32(magnitude);  // floats are ordered like their bits, NaN above all
  if (largest == 0) return 2;
  const int exponent = static_cast<int>(largest >> 23) - 127;
  if (exponent < -kMaxExponent || exponent > kMaxExponent) return 0;
  // |X| < 2^15; the largest of two balanced digits is 127 * 256 + 127.
  unit = exponent - 14;
  if (InUnits(first, second, -unit, group) &&
      _mm512_reduce_max_epi32(_mm512_max_epi32(Magnitude(group.first), Magnitude(group.second))) <= 127 * 257) {
    return 2;
  }
  unit = exponent - 20;
  if (InUnits(first, second, -unit, group) && SumsAreExact(group)) return 3;
  group = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  return 0;
}

// The lowest balanced digit of X, and X without it over 256.
inline __m512i TakeDigit(__m512i& x) {
  const __m512i digit = _mm512_srai_epi32(_mm512_slli_epi32(x, 24), 24);
  x = _mm512_srai_epi32(_mm512_sub_epi32(x, digit), 8);
  return digit;
}

}  // namespace

void PackDigits(const float* x, int lane, Fp4Digits& to) {
  Group group;
  int unit;
  to.digits[lane] = FindDigits(_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16), group, unit);
  to.half_unit[lane] = std::bit_cast<float>((127 + unit - 1) << 23);
  // Of eight columns the even ones, then the odd ones.
  const __m128i apart = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  for (int d = 0; d < 3; ++d) {
    const __m512i first = TakeDigit(group.first), second = TakeDigit(group.second);
    to.offset[d][lane] = -12 * _mm512_reduce_add_epi32(_mm512_add_epi32(first, second));
    alignas(16) uint32_t quads[8];
    _mm_store_si128(reinterpret_cast<__m128i*>(quads), _mm_shuffle_epi8(_mm512_cvtepi32_epi8(first), apart));
    _mm_store_si128(reinterpret_cast<__m128i*>(quads + 4), _mm_shuffle_epi8(_mm512_cvtepi32_epi8(second), apart));
    for (int v = 0; v < 8; ++v) std::memcpy(&to.digit[d][v][4 * lane], &quads[v], 4);
  }
}

}  // namespace senko::ops
HWY_POP_ATTRIBUTES
#else
#include "base/check.h"

namespace senko::ops {
void PackDigits(const float*, int, Fp4Digits&) { SENKO_CHECK(false); }
}  // namespace senko::ops
#endif
