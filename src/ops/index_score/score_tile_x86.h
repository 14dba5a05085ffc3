// Pieces the x86 score kernels share. Included after a HWY_PUSH_ATTRIBUTES that allows at least AVX2; the
// includer has already included the headers used here (outside the attributes). Everything has internal
// linkage: each kernel compiles its own copy.
#pragma once

namespace senko::ops {
namespace {

// Expands one row's query: 16 packed bytes to 32 signed half units in nibble order, with their sum's bias.
inline void PrepareQueryAvx2(const uint8_t* q_values, const uint8_t* q_scales, const ScoreQuery& query) {
  const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kHalfUnits));
  const __m128i nibble = _mm_set1_epi8(0x0F);
  for (int64_t i = 0; i < query.heads * query.blocks; ++i) {
    const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q_values + i * (kScoreBlock / 2)));
    const __m128i low = _mm_shuffle_epi8(table, _mm_and_si128(packed, nibble));
    const __m128i high = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(packed, 4), nibble));
    __m128i* values = reinterpret_cast<__m128i*>(query.values + i * kScoreBlock);
    _mm_storeu_si128(values, _mm_unpacklo_epi32(low, high));
    _mm_storeu_si128(values + 1, _mm_unpackhi_epi32(low, high));
    const __m128i pairs = _mm_maddubs_epi16(_mm_set1_epi8(1), _mm_add_epi8(low, high));  // |low + high| <= 24
    const __m128i quads = _mm_madd_epi16(pairs, _mm_set1_epi16(1));
    const __m128i halves = _mm_add_epi32(quads, _mm_unpackhi_epi64(quads, quads));
    query.bias[i] = -kKeyOffset * (_mm_cvtsi128_si32(halves) + _mm_extract_epi32(halves, 1));
    query.scales[i] = numerics::Ue8m0ToFloat(q_scales[i]) * 0.25f;
  }
}

inline __m128i LoadKeyBlock(const KeyRef& key, int64_t block) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(key.values + block * (kScoreBlock / 2)));
}

inline int LoadQuad(const int8_t* values) {
  int quad;
  std::memcpy(&quad, values, sizeof(quad));
  return quad;
}

// scales[block][key]: the keys' scales as floats. Four scales of a key at a time; the inner loop is over
// keys, which the compiler turns into vectors.
inline void ExpandScales(const KeyRef* keys, int64_t blocks, float* scales) {
  for (int64_t first = 0; first < blocks; first += 4) {
    const int64_t count = blocks - first < 4 ? blocks - first : 4;
    uint32_t codes[kTileKeys] = {};
    for (int64_t k = 0; k < kTileKeys; ++k) {
      if (count == 4) {
        std::memcpy(&codes[k], keys[k].scales + first, 4);
      } else {
        std::memcpy(&codes[k], keys[k].scales + first, static_cast<size_t>(count));
      }
    }
    for (int64_t b = 0; b < count; ++b) {
      uint32_t bits[kTileKeys];
      for (int64_t k = 0; k < kTileKeys; ++k) {
        const uint32_t code = (codes[k] >> (8 * b)) & 0xFF;  // ue8m0.h: 0 is 2^-127, 255 is NaN
        const uint32_t normal = code == 255 ? 0x7FC00000u : code << 23;
        bits[k] = code == 0 ? 0x00400000u : normal;
      }
      std::memcpy(scales + (first + b) * kTileKeys, bits, sizeof(bits));
    }
  }
}

}  // namespace
}  // namespace senko::ops
