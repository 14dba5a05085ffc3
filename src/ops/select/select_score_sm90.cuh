// Scores of a warp's keys, bit for bit index_score.h's.
//
// Where queries and keys fold (select_keys_sm90.cuh) a head's dot product is an integer below 2^20 times one power of
// two: every step of the contract's chain over blocks is exact then, and the chain over heads may be run in units of
// the key's least scale, since rounding commutes with powers of two away from the ends of the range. Else blocks and
// scales are multiplied and added as the contract says.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "numerics/ue8m0.h"
#include "ops/select/select_keys_sm90.cuh"

namespace senko::ops {

inline constexpr int kHeads = static_cast<int>(kMaxIndexHeadsSm90);
inline constexpr int kHeadStride = kHeads + 2;  // four rows' pairs of heads fall into different banks

// The queries of a unit; absent heads and blocks are zeros.
template <int kRows>
struct alignas(16) Queries {
  int folded_bias[kRows][kHeadStride];       // kMagicBits less kKeyOffset times the sum of the head's bytes
  float folded_weights[kRows][kHeadStride];  // weight * 2^(least code - 127) / 4
  float weights[kRows][kHeads];
  int bias[kRows][kHeads][4];      // the same of each block
  float scales[kRows][kHeads][4];  // 2^(code - 127) / 4
  float unfold[kRows][kHeads][4];  // 2^-fold
};

__device__ inline uint32_t QueryCodes(const SelectSm90Params& p, int64_t row, int head) {
  if (head >= p.heads) return 0x7F7F7F7Fu;
  const int blocks = static_cast<int>(p.dim / 32);
  const uint8_t* codes = p.q_scales + (row * p.heads + head) * blocks;
  uint32_t word = codes[0] * 0x01010101u;
  for (int b = 1; b < blocks; ++b) word = (word & ~(0xFFu << (8 * b))) | uint32_t{codes[b]} << (8 * b);
  return word;
}
__device__ inline uint32_t QueryWord(const SelectSm90Params& p, int64_t row, int head, int block, int word) {
  if (head >= p.heads || block * 32 >= p.dim) return 0;
  return *reinterpret_cast<const uint32_t*>(p.q_values + (row * p.heads + head) * (p.dim / 2) + block * 16 + word * 4);
}
// Whether a head's scales and weight allow folding.
__device__ inline bool HeadFolds(uint32_t codes, float weight) {
  int least, most;
  CodeRange(codes, &least, &most);
  const int exponent = static_cast<int>(__float_as_uint(weight) >> 23 & 0xFF) - 127;
  return Foldable(least, most, kMaxQueryFold) &&
         (weight == 0 || (exponent >= -kMostFoldWeight && exponent <= kMostFoldWeight));
}
__device__ inline int QueryFold(uint32_t codes, int block, bool folds) {
  int least, most;
  CodeRange(codes, &least, &most);
  return folds ? static_cast<int>(codes >> (8 * block) & 0xFF) - least : 0;
}

// Columns of the matrix instructions where rows come by fours are pairs of their heads: column n of instruction j is
// head 2 j + n % 2 of row n / 2, so that a lane holds all heads of its row in order. [instruction][half of the
// blocks][lane], two blocks of two registers.
using QuadOperand = uint4[kHeads / 2][2][32];

// Everything about block `b` of a head of `row`, which is number `to` of its unit; rows that do not exist are zeros.
// b = lane % 4: the warp's lanes share eight heads. The block synchronises before it scores.
template <int kRows>
__device__ void PrepareBlock(const SelectSm90Params& p, int64_t row, bool exists, int to, int head, bool folds,
                             Queries<kRows>* queries, QuadOperand* operands) {
  const int b = static_cast<int>(threadIdx.x) % 4;
  const uint32_t codes = exists ? QueryCodes(p, row, head) : 0x7F7F7F7Fu;
  int least, most, sum = 0;
  CodeRange(codes, &least, &most);
  const int code = static_cast<int>(codes >> (8 * b) & 0xFF), fold = folds ? code - least : 0;
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    uint2 two;
    ExpandQuery(exists ? QueryWord(p, row, head, b, word) : 0, fold, &two.x, &two.y);
    sum = __dp4a(static_cast<int>(two.x), 0x01010101, __dp4a(static_cast<int>(two.y), 0x01010101, sum));
    if constexpr (kRows > 1) {
      uint4* const four = &operands[to / 4][head / 2][b / 2][(to % 4 * 2 + head % 2) * 4 + word];
      reinterpret_cast<uint2*>(four)[b % 2] = two;
    }
  }
  queries->bias[to][head][b] = kMagicBits - kKeyOffset * sum;
  queries->scales[to][head][b] = __fmul_rn(numerics::Ue8m0ToFloat(static_cast<uint8_t>(code)), 0.25f);
  queries->unfold[to][head][b] = __int_as_float((127 - fold) << 23);
  sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
  sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
  if (b != 0) return;
  const float weight = exists && head < p.heads ? p.weights[row * p.heads + head] : 0.0f;
  queries->folded_bias[to][head] = kMagicBits - kKeyOffset * sum;
  queries->weights[to][head] = weight;
  queries->folded_weights[to][head] =
      folds ? __fmul_rn(weight, __fmul_rn(numerics::Ue8m0ToFloat(static_cast<uint8_t>(least)), 0.25f)) : 0.0f;
}

__device__ inline float IntegerOf(int accumulator) { return __fsub_rn(__int_as_float(accumulator), kMagicFloat); }
__device__ inline float Rectify(float dot) { return dot < 0 ? 0.0f : dot; }  // NaN passes
__device__ inline float KeyScale(uint32_t codes, int block) {
  return numerics::Ue8m0ToFloat(static_cast<uint8_t>(codes >> (8 * block) & 0xFF));
}

// ---- one row ----

// Columns of the matrix instructions are heads: column n of instruction j is head 8 (n / 2) + 2 j + n % 2, so that of
// the four lanes that share a key each holds eight heads that follow each other. The chain over heads goes through the
// four lanes in turn, each adding its heads to the sum that the one before ended with.
struct RowOperand {
  uint32_t b[4][4][2];  // [instruction][block]
};

__device__ inline RowOperand LoadRowOperand(const SelectSm90Params& p, int64_t row, bool folds) {
  const int lane = static_cast<int>(threadIdx.x) % 32, column = lane / 4;
  RowOperand operand;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int head = 8 * (column / 2) + 2 * j + column % 2;
    const uint32_t codes = QueryCodes(p, row, head);
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      ExpandQuery(QueryWord(p, row, head, b, lane % 4), QueryFold(codes, b, folds), &operand.b[j][b][0],
                  &operand.b[j][b][1]);
    }
  }
  return operand;
}

// What lane l returns, the score of key l, of what each lane keeps of a tile: scores of keys lane / 4 and 8 on, the
// same in the four lanes that share them.
struct RowScores {
  float mine = 0;

  __device__ void Keep(int tile, const float (&scores)[2]) {
    const int quarter = static_cast<int>(threadIdx.x) % 4;
    mine = quarter == 2 * tile ? scores[0] : quarter == 2 * tile + 1 ? scores[1] : mine;
  }
  __device__ float Spread() const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    return __shfl_sync(0xFFFFFFFFu, mine, lane % 8 * 4 + lane / 8);
  }
};

__device__ inline float ScoreFoldedRow(const KeyStage<32>& stage, const KeyInfo<32>& info, const uint4* tables,
                                       const Queries<1>& queries, const RowOperand& operand) {
  const int lane = static_cast<int>(threadIdx.x) % 32, first_head = lane % 4 * 8;
  RowScores all;
#pragma unroll 1
  for (int tile = 0; tile < 2; ++tile) {
    uint32_t a[4][4];
    ExpandTile<true>(stage, info, tables, tile, a);
    int c[4][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int2 bias = *reinterpret_cast<const int2*>(&queries.folded_bias[0][first_head + 2 * j]);
      const int from[4] = {bias.x, bias.y, bias.x, bias.y};
      Multiply16x8x32(c[j], a[0], operand.b[j][0][0], operand.b[j][0][1], from);
    }
#pragma unroll
    for (int b = 1; b < 4; ++b) {
#pragma unroll
      for (int j = 0; j < 4; ++j) Multiply16x8x32(c[j], a[b], operand.b[j][b][0], operand.b[j][b][1], c[j]);
    }
    float dots[4][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) dots[j][i] = fmaxf(IntegerOf(c[j][i]), 0.0f);
    }
    float weights[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) weights[i] = queries.folded_weights[0][first_head + i];
    float scores[2] = {0, 0};
#pragma unroll
    for (int turn = 0; turn < 4; ++turn) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          scores[half] = __fmaf_rn(weights[i], dots[i / 2][2 * half + i % 2], scores[half]);
        }
      }
#pragma unroll
      for (float& s : scores) s = __shfl_sync(0xFFFFFFFFu, s, lane / 4 * 4 + turn);
    }
    all.Keep(tile, scores);
  }
  return __fmul_rn(all.Spread(), info.units[lane]);
}

__device__ inline float ScoreAnyRow(const SelectSm90Params& p, const KeyStage<32>& stage, const KeyInfo<32>& info,
                                    const uint4* tables, const Queries<1>& queries, const RowOperand& operand) {
  const int lane = static_cast<int>(threadIdx.x) % 32, first_head = lane % 4 * 8;
  const int blocks = static_cast<int>(p.dim / 32), heads = static_cast<int>(p.heads);
  RowScores all;
#pragma unroll 1
  for (int tile = 0; tile < 2; ++tile) {
    uint32_t a[4][4];
    ExpandTile<false>(stage, info, tables, tile, a);
    uint32_t codes[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) codes[half] = info.words[tile * 16 + half * 8 + lane / 4];
    float dots[4][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float sums[4] = {};
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        if (b >= blocks) break;
        int c[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) c[i] = queries.bias[0][first_head + 2 * j + i % 2][b];
        Multiply16x8x32(c, a[b], operand.b[j][b][0], operand.b[j][b][1], c);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int head = first_head + 2 * j + i % 2;
          const float integer = __fmul_rn(IntegerOf(c[i]), queries.unfold[0][head][b]);
          sums[i] = __fmaf_rn(integer, __fmul_rn(queries.scales[0][head][b], KeyScale(codes[i / 2], b)), sums[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) dots[j][i] = Rectify(sums[i]);
    }
    float scores[2] = {0, 0};
#pragma unroll
    for (int turn = 0; turn < 4; ++turn) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (first_head + i >= heads) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          scores[half] = __fmaf_rn(queries.weights[0][first_head + i], dots[i / 2][2 * half + i % 2], scores[half]);
        }
      }
#pragma unroll
      for (float& s : scores) s = __shfl_sync(0xFFFFFFFFu, s, lane / 4 * 4 + turn);
    }
    all.Keep(tile, scores);
  }
  return all.Spread();
}

// ---- rows by fours ----

inline constexpr int kQuadTiles = 4;  // of 16 keys

// scores[2 t + half] is that of key 16 t + 8 half + lane / 4 for row lane % 4 of the four.
template <int kRows>
__device__ inline void ScoreFoldedQuad(int heads, const uint32_t (&a)[kQuadTiles][4][4],
                                       const KeyInfo<16 * kQuadTiles>& info, const Queries<kRows>& queries, int quad,
                                       const QuadOperand& operand, float (&scores)[2 * kQuadTiles]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = quad * 4 + lane % 4;
#pragma unroll
  for (float& s : scores) s = 0;
#pragma unroll 2
  for (int j = 0; j < (heads + 1) / 2; ++j) {
    const int2 bias = *reinterpret_cast<const int2*>(&queries.folded_bias[row][2 * j]);
    const float2 weight = *reinterpret_cast<const float2*>(&queries.folded_weights[row][2 * j]);
    const uint4 front = operand[j][0][lane], back = operand[j][1][lane];
    const int from[4] = {bias.x, bias.y, bias.x, bias.y};
    int c[kQuadTiles][4];
#pragma unroll
    for (int t = 0; t < kQuadTiles; ++t) Multiply16x8x32(c[t], a[t][0], front.x, front.y, from);
#pragma unroll
    for (int t = 0; t < kQuadTiles; ++t) Multiply16x8x32(c[t], a[t][1], front.z, front.w, c[t]);
#pragma unroll
    for (int t = 0; t < kQuadTiles; ++t) Multiply16x8x32(c[t], a[t][2], back.x, back.y, c[t]);
#pragma unroll
    for (int t = 0; t < kQuadTiles; ++t) Multiply16x8x32(c[t], a[t][3], back.z, back.w, c[t]);
#pragma unroll
    for (int t = 0; t < kQuadTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& s = scores[2 * t + half];
        s = __fmaf_rn(weight.x, fmaxf(IntegerOf(c[t][2 * half]), 0.0f), s);
        s = __fmaf_rn(weight.y, fmaxf(IntegerOf(c[t][2 * half + 1]), 0.0f), s);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < 2 * kQuadTiles; ++k) scores[k] = __fmul_rn(scores[k], info.units[8 * k + lane / 4]);
}

template <int kRows>
__device__ inline void ScoreAnyQuad(const SelectSm90Params& p, const uint32_t (&a)[kQuadTiles][4][4],
                                    const KeyInfo<16 * kQuadTiles>& info, const Queries<kRows>& queries, int quad,
                                    const QuadOperand& operand, float (&scores)[2 * kQuadTiles]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, row = quad * 4 + lane % 4;
  const int blocks = static_cast<int>(p.dim / 32), heads = static_cast<int>(p.heads);
#pragma unroll
  for (float& s : scores) s = 0;
#pragma unroll
  for (int t = 0; t < kQuadTiles; ++t) {
    uint32_t codes[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) codes[half] = info.words[t * 16 + half * 8 + lane / 4];
#pragma unroll 1
    for (int j = 0; j < (heads + 1) / 2; ++j) {
      float sums[4] = {};
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        if (b >= blocks) break;
        const uint2 right = reinterpret_cast<const uint2*>(&operand[j][b / 2][lane])[b % 2];
        int c[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) c[i] = queries.bias[row][2 * j + i % 2][b];
        Multiply16x8x32(c, a[t][b], right.x, right.y, c);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float integer = __fmul_rn(IntegerOf(c[i]), queries.unfold[row][2 * j + i % 2][b]);
          const float scale = __fmul_rn(queries.scales[row][2 * j + i % 2][b], KeyScale(codes[i / 2], b));
          sums[i] = __fmaf_rn(integer, scale, sums[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (2 * j + i % 2 >= heads) continue;
        scores[2 * t + i / 2] = __fmaf_rn(queries.weights[row][2 * j + i % 2], Rectify(sums[i]), scores[2 * t + i / 2]);
      }
    }
  }
}

}  // namespace senko::ops
