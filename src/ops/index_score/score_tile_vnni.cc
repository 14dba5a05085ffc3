// AVX-512 with VNNI: 16 keys per vector, four byte products added in 32 bits per lane and instruction.
#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// gcc 12's AVX-512 headers build "undefined" vectors from themselves and warn about it.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <cstring>

#include "hwy/base.h"
#include "numerics/ue8m0.h"
#include "ops/index_score/score_tile.h"

HWY_PUSH_ATTRIBUTES("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
#include "ops/index_score/score_tile_x86.h"

namespace senko::ops {
namespace {

constexpr int kLanes = 16;
constexpr int kGroups = 2;  // vectors of keys: the whole tile
constexpr int64_t kStepBytes = kTileKeys * 4;

// scratch[block][step][key][4]: element 4 * step .. of the block in nibble order, unsigned.
void ExpandKeys(const KeyRef* keys, int64_t blocks, uint8_t* scratch) {
  const __m512i table = _mm512_broadcast_i32x4(
      _mm_add_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kHalfUnits)), _mm_set1_epi8(kKeyOffset)));
  const __m512i nibble = _mm512_set1_epi8(0x0F);
  for (int64_t b = 0; b < blocks; ++b) {
    for (int64_t g = 0; g < kGroups; ++g) {
      __m512i rows[4];
      for (int i = 0; i < 4; ++i) {
        const KeyRef* k = keys + g * kLanes + i;
        __m512i row = _mm512_castsi128_si512(LoadKeyBlock(k[0], b));
        row = _mm512_inserti32x4(row, LoadKeyBlock(k[4], b), 1);
        row = _mm512_inserti32x4(row, LoadKeyBlock(k[8], b), 2);
        rows[i] = _mm512_inserti32x4(row, LoadKeyBlock(k[12], b), 3);
      }
      const __m512i t0 = _mm512_unpacklo_epi32(rows[0], rows[1]), t1 = _mm512_unpackhi_epi32(rows[0], rows[1]);
      const __m512i t2 = _mm512_unpacklo_epi32(rows[2], rows[3]), t3 = _mm512_unpackhi_epi32(rows[2], rows[3]);
      const __m512i quads[4] = {_mm512_unpacklo_epi64(t0, t2), _mm512_unpackhi_epi64(t0, t2),
                                _mm512_unpacklo_epi64(t1, t3), _mm512_unpackhi_epi64(t1, t3)};
      uint8_t* to = scratch + b * 8 * kStepBytes + g * kLanes * 4;
      for (int d = 0; d < 4; ++d) {
        const __m512i low = _mm512_shuffle_epi8(table, _mm512_and_si512(quads[d], nibble));
        const __m512i high = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(quads[d], 4), nibble));
        _mm512_store_si512(to + 2 * d * kStepBytes, low);
        _mm512_store_si512(to + (2 * d + 1) * kStepBytes, high);
      }
    }
  }
}

template <int kHeads>
inline void AddHeads(const ScoreQuery& query, int64_t h, const uint8_t* keys, const float* key_scales, __m512* scores) {
  __m512 dot[kHeads][kGroups];
  for (auto& d : dot) d[0] = d[1] = _mm512_setzero_ps();
  for (int64_t b = 0; b < query.blocks; ++b) {
    __m512i sum[kHeads][kGroups];
    for (int i = 0; i < kHeads; ++i) sum[i][0] = sum[i][1] = _mm512_set1_epi32(query.bias[(h + i) * query.blocks + b]);
    for (int64_t d = 0; d < 8; ++d) {
      const uint8_t* k = keys + (b * 8 + d) * kStepBytes;
      const __m512i k0 = _mm512_load_si512(k), k1 = _mm512_load_si512(k + 64);
      for (int i = 0; i < kHeads; ++i) {
        const __m512i q =
            _mm512_set1_epi32(LoadQuad(query.values + ((h + i) * query.blocks + b) * kScoreBlock + 4 * d));
        sum[i][0] = _mm512_dpbusd_epi32(sum[i][0], k0, q);
        sum[i][1] = _mm512_dpbusd_epi32(sum[i][1], k1, q);
      }
    }
    for (int i = 0; i < kHeads; ++i) {
      const __m512 q_scale = _mm512_set1_ps(query.scales[(h + i) * query.blocks + b]);
      for (int g = 0; g < kGroups; ++g) {
        const __m512 scale = _mm512_mul_ps(q_scale, _mm512_load_ps(key_scales + b * kTileKeys + g * kLanes));
        dot[i][g] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[i][g]), scale, dot[i][g]);
      }
    }
  }
  for (int i = 0; i < kHeads; ++i) {
    const __m512 w = _mm512_set1_ps(query.weights[h + i]);
    for (int g = 0; g < kGroups; ++g) {
      // max(0, dot) returns its second operand when that is NaN: the contract's relu.
      scores[g] = _mm512_fmadd_ps(w, _mm512_max_ps(_mm512_setzero_ps(), dot[i][g]), scores[g]);
    }
  }
}

void Tile(const ScoreQuery& query, const KeyRef* keys, uint8_t* scratch, float* out) {
  float* scales = reinterpret_cast<float*>(scratch + query.blocks * kTileKeys * kScoreBlock);
  ExpandKeys(keys, query.blocks, scratch);
  ExpandScales(keys, query.blocks, scales);
  __m512 scores[kGroups] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  int64_t h = 0;
  for (; h + 4 <= query.heads; h += 4) AddHeads<4>(query, h, scratch, scales, scores);
  for (; h < query.heads; ++h) AddHeads<1>(query, h, scratch, scales, scores);
  _mm512_storeu_ps(out, scores[0]);
  _mm512_storeu_ps(out + kLanes, scores[1]);
}

}  // namespace

ScoreKernel VnniScoreKernel() { return {PrepareQueryAvx2, Tile}; }

}  // namespace senko::ops
HWY_POP_ATTRIBUTES
#endif
