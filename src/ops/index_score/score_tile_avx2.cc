// AVX2: 8 keys per vector, byte products summed in 16 bits (8 * 2 * 24 * 12 = 4608 fits), widened once per
// block.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#include "hwy/base.h"
#include "numerics/ue8m0.h"
#include "ops/index_score/score_tile.h"

HWY_PUSH_ATTRIBUTES("avx2,fma")
#include "ops/index_score/score_tile_x86.h"

namespace senko::ops {
namespace {

constexpr int kLanes = 8;
constexpr int kGroups = 2;  // vectors of keys per pass
constexpr int64_t kStepBytes = kTileKeys * 4;

// scratch[block][step][key][4]: element 4 * step .. of the block in nibble order, unsigned.
void ExpandKeys(const KeyRef* keys, int64_t blocks, uint8_t* scratch) {
  const __m256i table = _mm256_broadcastsi128_si256(
      _mm_add_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kHalfUnits)), _mm_set1_epi8(kKeyOffset)));
  const __m256i nibble = _mm256_set1_epi8(0x0F);
  for (int64_t b = 0; b < blocks; ++b) {
    for (int64_t g = 0; g < kTileKeys / kLanes; ++g) {
      __m256i rows[4];
      for (int i = 0; i < 4; ++i) {
        rows[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(LoadKeyBlock(keys[g * kLanes + i], b)),
                                          LoadKeyBlock(keys[g * kLanes + 4 + i], b), 1);
      }
      const __m256i t0 = _mm256_unpacklo_epi32(rows[0], rows[1]), t1 = _mm256_unpackhi_epi32(rows[0], rows[1]);
      const __m256i t2 = _mm256_unpacklo_epi32(rows[2], rows[3]), t3 = _mm256_unpackhi_epi32(rows[2], rows[3]);
      const __m256i quads[4] = {_mm256_unpacklo_epi64(t0, t2), _mm256_unpackhi_epi64(t0, t2),
                                _mm256_unpacklo_epi64(t1, t3), _mm256_unpackhi_epi64(t1, t3)};
      uint8_t* to = scratch + b * 8 * kStepBytes + g * kLanes * 4;
      for (int d = 0; d < 4; ++d) {
        const __m256i low = _mm256_shuffle_epi8(table, _mm256_and_si256(quads[d], nibble));
        const __m256i high = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(quads[d], 4), nibble));
        _mm256_store_si256(reinterpret_cast<__m256i*>(to + 2 * d * kStepBytes), low);
        _mm256_store_si256(reinterpret_cast<__m256i*>(to + (2 * d + 1) * kStepBytes), high);
      }
    }
  }
}

template <int kHeads>
inline void AddHeads(const ScoreQuery& query, int64_t h, const uint8_t* keys, const float* key_scales, __m256* scores) {
  __m256 dot[kHeads][kGroups];
  for (auto& d : dot) d[0] = d[1] = _mm256_setzero_ps();
  for (int64_t b = 0; b < query.blocks; ++b) {
    __m256i sum[kHeads][kGroups];
    for (auto& s : sum) s[0] = s[1] = _mm256_setzero_si256();
    for (int64_t d = 0; d < 8; ++d) {
      const __m256i* k = reinterpret_cast<const __m256i*>(keys + (b * 8 + d) * kStepBytes);
      const __m256i k0 = _mm256_load_si256(k), k1 = _mm256_load_si256(k + 1);
      for (int i = 0; i < kHeads; ++i) {
        const __m256i q =
            _mm256_set1_epi32(LoadQuad(query.values + ((h + i) * query.blocks + b) * kScoreBlock + 4 * d));
        sum[i][0] = _mm256_add_epi16(sum[i][0], _mm256_maddubs_epi16(k0, q));
        sum[i][1] = _mm256_add_epi16(sum[i][1], _mm256_maddubs_epi16(k1, q));
      }
    }
    for (int i = 0; i < kHeads; ++i) {
      const int64_t at = (h + i) * query.blocks + b;
      for (int g = 0; g < kGroups; ++g) {
        const __m256i units =
            _mm256_add_epi32(_mm256_madd_epi16(sum[i][g], _mm256_set1_epi16(1)), _mm256_set1_epi32(query.bias[at]));
        const __m256 scale =
            _mm256_mul_ps(_mm256_set1_ps(query.scales[at]), _mm256_load_ps(key_scales + b * kTileKeys + g * kLanes));
        dot[i][g] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(units), scale, dot[i][g]);
      }
    }
  }
  for (int i = 0; i < kHeads; ++i) {
    const __m256 w = _mm256_set1_ps(query.weights[h + i]);
    for (int g = 0; g < kGroups; ++g) {
      // max(0, dot) returns its second operand when that is NaN: the contract's relu.
      scores[g] = _mm256_fmadd_ps(w, _mm256_max_ps(_mm256_setzero_ps(), dot[i][g]), scores[g]);
    }
  }
}

void Tile(const ScoreQuery& query, const KeyRef* keys, uint8_t* scratch, float* out) {
  float* scales = reinterpret_cast<float*>(scratch + query.blocks * kTileKeys * kScoreBlock);
  ExpandKeys(keys, query.blocks, scratch);
  ExpandScales(keys, query.blocks, scales);
  for (int64_t g = 0; g < kTileKeys; g += kGroups * kLanes) {
    __m256 scores[kGroups] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    int64_t h = 0;
    for (; h + 2 <= query.heads; h += 2) AddHeads<2>(query, h, scratch + g * 4, scales + g, scores);
    for (; h < query.heads; ++h) AddHeads<1>(query, h, scratch + g * 4, scales + g, scores);
    _mm256_storeu_ps(out + g, scores[0]);
    _mm256_storeu_ps(out + g + kLanes, scores[1]);
  }
}

}  // namespace

ScoreKernel Avx2ScoreKernel() { return {PrepareQueryAvx2, Tile}; }

}  // namespace senko::ops
HWY_POP_ATTRIBUTES
#endif
