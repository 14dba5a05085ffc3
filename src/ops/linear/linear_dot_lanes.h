// Rows of x as pairs of bf16, and sums of sixteen lanes, for linear_dot.cc alone, which includes this between its
// target attributes.
#pragma once

namespace senko::ops {
namespace {

// A vector of pairs of bf16: lane l holds the first column in its lower half, the second in its upper half.
inline __m512 Dot(__m512 sum, __m512i x, __m512i w) {
  return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)w);  // NOLINT: a cast of vectors
}
inline __m512i LoadPairs(const uint16_t* p) { return _mm512_load_si512(p); }

// Exponents here are biased, those of bf16: 0 is subnormal, 255 not finite. Words holding twice a magnitude, less one,
// so that zero is the largest: the exponent of the smallest number but zero (255: all are zero).
inline int LeastExponent(__m512i words) {
  alignas(64) std::array<uint16_t, 32> all;
  _mm512_store_si512(all.data(), words);
  return std::min((*std::min_element(all.begin(), all.end()) + 1) >> 8, 255);
}

// Numbers with these exponents are multiples of 2^(exponent - 134); e4m3 of 2^-9, e2m1 of 2^-1.
constexpr int kLeastFp4X = 134 + 1 - 126;
constexpr int kLeastFp8X = 134 + 9 - 126;
constexpr int kLeastBf16Product = 134 + 134 - 126;  // the exponents of x and w added

// A row of x as pairs: of every 32 floats, lane l holds numbers l and 16 + l. FP8's are multiplied by the tile's
// scales.
struct DotRow {
  uint16_t* pairs;
  int64_t row;      // of the span
  int least, most;  // exponents of its smallest number but zero (255: all are zero) and of its largest
};

// False where a number is no bf16 value, not finite or subnormal.
bool PackPairs(const float* x, int64_t cols, DotRow& row) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u)), one = _mm512_set1_epi16(1);
  __m512i any = _mm512_setzero_si512(), least = _mm512_set1_epi16(-1), most = any;
  for (int64_t k = 0; k < cols; k += 32) {
    const __m512i first = _mm512_loadu_si512(x + k), second = _mm512_loadu_si512(x + k + 16);
    // (first >> 16) | (second & upper)
    const __m512i pairs = _mm512_ternarylogic_epi32(_mm512_srli_epi32(first, 16), second, upper, 0xF8);
    _mm512_store_si512(row.pairs + k, pairs);
    any = _mm512_ternarylogic_epi32(any, first, second, 0xFE);
    const __m512i twice = _mm512_add_epi16(pairs, pairs);           // without its sign
    least = _mm512_min_epu16(least, _mm512_sub_epi16(twice, one));  // zero becomes the largest
    most = _mm512_max_epu16(most, twice);
  }
  alignas(64) std::array<uint16_t, 32> high;
  _mm512_store_si512(high.data(), most);
  row.least = LeastExponent(least);
  row.most = *std::max_element(high.begin(), high.end()) >> 8;
  return _mm512_test_epi32_mask(any, _mm512_set1_epi32(0xFFFF)) == 0 && row.least > 0 && row.most < 255;
}

// to = from times the scales of one tile, each a power of two added to the exponents.
void ScalePairs(const uint16_t* from, const uint8_t* scales, int64_t cols, uint16_t* to) {
  const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
  for (int64_t k = 0; k < cols; k += 32) {
    const __m512i pairs = LoadPairs(from + k);
    const __m512i exponent = _mm512_set1_epi16(static_cast<int16_t>((scales[k / 32] - 127) * 128));
    const __mmask32 nonzero = _mm512_test_epi16_mask(pairs, magnitude);
    _mm512_store_si512(to + k, _mm512_mask_add_epi16(pairs, nonzero, pairs, exponent));
  }
}

// The canonical tree (numerics/simd/lanes-inl.h).
inline float ReduceSum(__m512 v) {
  const __m256 h8 = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 h4 = _mm_add_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
  const __m128 h2 = _mm_add_ps(h4, _mm_movehl_ps(h4, h4));
  return _mm_cvtss_f32(_mm_add_ss(h2, _mm_shuffle_ps(h2, h2, 1)));
}
inline __m128 ReduceSum4(__m512 a0, __m512 a1, __m512 a2, __m512 a3) {
  const __m512 h01 = _mm512_add_ps(_mm512_shuffle_f32x4(a0, a1, 0x44), _mm512_shuffle_f32x4(a0, a1, 0xEE));
  const __m512 h23 = _mm512_add_ps(_mm512_shuffle_f32x4(a2, a3, 0x44), _mm512_shuffle_f32x4(a2, a3, 0xEE));
  const __m512 q = _mm512_add_ps(_mm512_shuffle_f32x4(h01, h23, 0x88), _mm512_shuffle_f32x4(h01, h23, 0xDD));
  const __m512 d = _mm512_add_ps(q, _mm512_permute_ps(q, 0x4E));
  const __m512 s = _mm512_add_ps(d, _mm512_permute_ps(d, 0xB1));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  return _mm512_castps512_ps128(_mm512_permutexvar_ps(order, s));
}

// The sums of kOuts outputs and kRows rows: a chunk's lanes, and what the chunks before it came to.
template <int kOuts, int kRows>
struct Sums {
  static constexpr int kCount = kOuts * kRows;
  __m512 lane[kOuts][kRows];
  alignas(16) float total[kOuts * kRows] = {};

  inline void Clear() {
    for (auto& out : lane) {
      for (__m512& sum : out) sum = _mm512_setzero_ps();
    }
  }
  inline void EndChunk() {
    const __m512* const flat = &lane[0][0];
    if constexpr (kCount % 4 == 0) {
      for (int i = 0; i < kCount; i += 4) {
        const __m128 sums = ReduceSum4(flat[i], flat[i + 1], flat[i + 2], flat[i + 3]);
        _mm_store_ps(total + i, _mm_add_ps(_mm_load_ps(total + i), sums));
      }
    } else {
      for (int i = 0; i < kCount; ++i) total[i] += ReduceSum(flat[i]);
    }
  }
};

}  // namespace
}  // namespace senko::ops
