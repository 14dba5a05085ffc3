// Queries, scores, weights, products and outputs: what two warpgroups do with keys in shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "cuda/ptx.cuh"
#include "ops/attention/attention_keys_sm90.cuh"
#include "ops/attention/attention_shared_sm90.cuh"
#include "ops/linear/wgmma.cuh"

namespace senko::ops::sm90 {

using namespace cuda;  // NOLINT: the instructions

__device__ inline void ConsumersSync() { asm volatile("bar.sync 1, 256;" ::: "memory"); }
__device__ inline int Consumer() { return static_cast<int>(threadIdx.x); }

// The row's queries, heads beyond p.heads zero, and its rotation, on the way.
__device__ inline void FetchQueries(const AttentionSm90Params& p, int64_t row, uint32_t base) {
  const int thread = Afresh(Consumer()), piece = thread % (kDim / 8);
#pragma unroll 4
  for (int i = 0; i < kHeads * (kDim / 8) / kConsumers; ++i) {
    const int head = thread / (kDim / 8) + i * (kConsumers / (kDim / 8));
    const bool really = head < p.heads;
    CopyAsync16(base + kQueryAt + PieceAt(head, piece), p.q + (row * p.heads + (really ? head : 0)) * kDim + piece * 8,
                really);
  }
  if (thread < p.rope_dim / 4) {
    const auto i = static_cast<uint32_t>(thread);
    CopyAsync16(base + kRopeAt + i * 16, p.rope + row * p.rope_dim + i * 4, true);
  }
  CommitCopies();
}
// Rotates them when they have come, and lets the products read them.
__device__ inline void FinishQueries(const AttentionSm90Params& p, uint32_t base) {
  WaitForCopies<0>();
  ConsumersSync();
  const int pieces = static_cast<int>(p.rope_dim) / 8, tail = kDim / 8 - pieces;
  for (int i = Consumer(); i < kHeads * pieces; i += kConsumers) {
    const uint32_t at = base + kQueryAt + PieceAt(i / pieces, tail + i % pieces);
    const uint32_t rope = base + kRopeAt + static_cast<uint32_t>(i % pieces * 32);
    uint4 codes = LoadShared16(at);
    const uint4 turns[2] = {LoadShared16(rope), LoadShared16(rope + 16)};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t& word = (&codes.x)[k];
      const uint4& turn = turns[k / 2];
      const float a = __uint_as_float(word << 16), b = __uint_as_float(word & 0xFFFF0000u);
      const float cosine = __uint_as_float(k % 2 == 0 ? turn.x : turn.z),
                  sine = __uint_as_float(k % 2 == 0 ? turn.y : turn.w);
      const __nv_bfloat162 two = __floats2bfloat162_rn(__fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine)),
                                                       __fadd_rn(__fmul_rn(a, sine), __fmul_rn(b, cosine)));
      word = *reinterpret_cast<const uint32_t*>(&two);
    }
    StoreShared(at, codes);
  }
  FenceAsyncProxy();
  ConsumersSync();
}

// clang-format off
// 64 heads x 64 keys x 16 channels, both operands from shared memory.
__device__ inline void ScoreStep(float (&s)[32], uint64_t q, uint64_t k, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1, 0, 0;\n}"
      : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]), "+f"(s[6]), "+f"(s[7]), "+f"(s[8]), "+f"(s[9]), "+f"(s[10]), "+f"(s[11]), "+f"(s[12]), "+f"(s[13]), "+f"(s[14]), "+f"(s[15]), "+f"(s[16]), "+f"(s[17]), "+f"(s[18]), "+f"(s[19]), "+f"(s[20]), "+f"(s[21]), "+f"(s[22]), "+f"(s[23]), "+f"(s[24]), "+f"(s[25]), "+f"(s[26]), "+f"(s[27]), "+f"(s[28]), "+f"(s[29]), "+f"(s[30]), "+f"(s[31])
      : "l"(q), "l"(k), "r"(add));
}
// 64 heads x 64 channels x 16 keys: weights from registers; values are columns of rows of keys.
__device__ inline void WeighStep(float (&o)[32], const uint32_t (&w)[4], uint64_t v, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}"
      : "+f"(o[0]), "+f"(o[1]), "+f"(o[2]), "+f"(o[3]), "+f"(o[4]), "+f"(o[5]), "+f"(o[6]), "+f"(o[7]), "+f"(o[8]), "+f"(o[9]), "+f"(o[10]), "+f"(o[11]), "+f"(o[12]), "+f"(o[13]), "+f"(o[14]), "+f"(o[15]), "+f"(o[16]), "+f"(o[17]), "+f"(o[18]), "+f"(o[19]), "+f"(o[20]), "+f"(o[21]), "+f"(o[22]), "+f"(o[23]), "+f"(o[24]), "+f"(o[25]), "+f"(o[26]), "+f"(o[27]), "+f"(o[28]), "+f"(o[29]), "+f"(o[30]), "+f"(o[31])
      : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(v), "r"(add));
}
// clang-format on

// What a thread holds of a block or of all so far: heads g and g + 8 of its warp's 16; of its warpgroup's 256 channels,
// in each of the parts, element 4 j + 2 h + i is head g + 8 h, channel 8 j + 2 t + i.
struct Head2 {
  float v[2];
};

// A block's scores: element 4 j + 2 h + i is head g + 8 h, key 8 j + 2 t + i.
__device__ inline void Score(uint32_t base, uint32_t tile, float (&s)[kKeys / 2]) {
  const uint64_t queries = SwizzledRows(base + kQueryAt), keys = SwizzledRows(tile);
  WgmmaFenceRegisters(s);
  WgmmaFence();
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    const auto at = static_cast<uint64_t>((step / 4 * kSubtile + step % 4 * 32) / 16);
    ScoreStep(s, queries + at, keys + at, step > 0);
  }
  WgmmaCommit();
  WgmmaWait<0>();
  WgmmaFenceRegisters(s);
}

// 2^x as exp2f has it, but zero below 2^-126: a quarter of the instructions.
__device__ inline float PowerOf2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// Scores times a positive scale become weights, operand A of the products; maximum and sum (in powers of two) of the
// thread's two heads.
__device__ inline void Weights(float scale, int keys, float (&s)[kKeys / 2], uint32_t (&weights)[kKeys / 16][4],
                               Head2* maximum, Head2* sum) {
  const int first = static_cast<int>(threadIdx.x) % 4 * 2;
  float top[2] = {-INFINITY, -INFINITY};
  if (keys < kKeys) {
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      if (first + i / 4 * 8 + i % 2 >= keys) s[i] = -INFINITY;
    }
  }
#pragma unroll
  for (int i = 0; i < kKeys / 2; ++i) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);  // a NaN survives in its weight
  float total[2] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    top[h] = fmaxf(top[h], __shfl_xor_sync(0xFFFFFFFFu, top[h], 1));
    top[h] = fmaxf(top[h], __shfl_xor_sync(0xFFFFFFFFu, top[h], 2));
    top[h] = __fmul_rn(top[h], scale);
  }
#pragma unroll
  for (int i = 0; i < kKeys / 2; i += 2) {
    const int h = i / 2 % 2;
    const float a = PowerOf2(__fmaf_rn(s[i], scale, -top[h])), b = PowerOf2(__fmaf_rn(s[i + 1], scale, -top[h]));
    total[h] = __fadd_rn(total[h], __fadd_rn(a, b));
    const __nv_bfloat162 two = __floats2bfloat162_rn(a, b);
    weights[i / 8][i / 2 % 4] = *reinterpret_cast<const uint32_t*>(&two);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    total[h] = __fadd_rn(total[h], __shfl_xor_sync(0xFFFFFFFFu, total[h], 1));
    total[h] = __fadd_rn(total[h], __shfl_xor_sync(0xFFFFFFFFu, total[h], 2));
    maximum->v[h] = top[h], sum->v[h] = total[h];
  }
}

// The first warpgroup's weights become the second's too, where packed keys were: with one block there is nothing to
// hide behind, and scores are sooner done by one warpgroup than by two, each.
__device__ inline void ShareWeights(uint32_t base, int group, uint32_t (&weights)[kKeys / 16][4], Head2* maximum,
                                    Head2* sum) {
  constexpr uint32_t kEach = 128 * 16;
  const uint32_t at = base + kExchangeAt + static_cast<uint32_t>(Consumer() % 128 * 16);
  if (group == 0) {
#pragma unroll
    for (uint32_t i = 0; i < kKeys / 16; ++i) {
      StoreShared(at + i * kEach, uint4{weights[i][0], weights[i][1], weights[i][2], weights[i][3]});
    }
    StoreShared(at + kKeys / 16 * kEach, uint4{__float_as_uint(maximum->v[0]), __float_as_uint(maximum->v[1]),
                                               __float_as_uint(sum->v[0]), __float_as_uint(sum->v[1])});
  }
  ConsumersSync();
  if (group == 0) return;
#pragma unroll
  for (uint32_t i = 0; i < kKeys / 16; ++i) {
    const uint4 four = LoadShared16(at + i * kEach);
    weights[i][0] = four.x, weights[i][1] = four.y, weights[i][2] = four.z, weights[i][3] = four.w;
  }
  const uint4 rest = LoadShared16(at + kKeys / 16 * kEach);
  maximum->v[0] = __uint_as_float(rest.x), maximum->v[1] = __uint_as_float(rest.y);
  sum->v[0] = __uint_as_float(rest.z), sum->v[1] = __uint_as_float(rest.w);
}

// Starts the block's products of part `part` of the warpgroup's channels, which begin at `values`.
__device__ inline void StartPart(const uint32_t (&weights)[kKeys / 16][4], uint64_t values, int part,
                                 float (&o)[kPart / 2]) {
  WgmmaFenceRegisters(o);
  WgmmaFence();
#pragma unroll
  for (int step = 0; step < kKeys / 16; ++step) {
    const int at = part * kPart / 64 * kSubtile + part * kPart % 64 * 2 + step * 16 * 128;
    WeighStep(o, weights[step], values + static_cast<uint64_t>(at / 16), step > 0);
  }
  WgmmaCommit();
}

// One weight of what was and of what comes, when the maxima differ.
__device__ inline float Decay(float from, float to) { return from == -INFINITY ? 0.0f : PowerOf2(from - to); }
__device__ inline float Join(float old, float old_weight, float fresh, float fresh_weight) {
  return __fmaf_rn(fresh, fresh_weight, __fmul_rn(old, old_weight));
}

// Two channels, rounded, are rotated back by a cosine and a sine.
__device__ inline void TurnBack(const float2& turn, float* a, float* b) {
  const float real = __bfloat162float(__float2bfloat16_rn(*a)), imaginary = __bfloat162float(__float2bfloat16_rn(*b));
  const float cosine = turn.x, sine = -turn.y;
  *a = __fsub_rn(__fmul_rn(real, cosine), __fmul_rn(imaginary, sine));
  *b = __fadd_rn(__fmul_rn(real, sine), __fmul_rn(imaginary, cosine));
}
// Channels c and c + 1 of a head: weighed, rounded, rotated back if they are of the tail, rounded and stored.
__device__ inline void StorePair(const AttentionSm90Params& p, int64_t row, int head, int channel, float a, float b,
                                 float factor) {
  a = __fmul_rn(a, factor), b = __fmul_rn(b, factor);
  const auto tail = static_cast<int>(kDim - p.rope_dim);
  if (channel >= tail) {
    TurnBack(*reinterpret_cast<const float2*>(p.rope + row * p.rope_dim + channel - tail), &a, &b);
  }
  *reinterpret_cast<__nv_bfloat162*>(p.out + (row * p.heads + head) * kDim + channel) = __floats2bfloat162_rn(a, b);
}

// What the sum of a head's products is multiplied with; the values were kKeyScale of themselves.
__device__ inline float OutputFactor(const AttentionSm90Params& p, int head, float sum, float maximum) {
  return __fdiv_rn(1 / kKeyScale, __fadd_rn(sum, exp2f(__fsub_rn(__fmul_rn(p.sink[head], kLog2e), maximum))));
}

// StorePair for all that a thread holds.
__device__ inline void StoreOutputs(const AttentionSm90Params& p, int64_t row, int group, float (&o)[kParts][kPart / 2],
                                    const float (&factors)[2]) {
  const int thread = Afresh(Consumer()), head = thread % 128 / 32 * 16 + thread % 32 / 4;
  const int tail = static_cast<int>(kDim - p.rope_dim), pair = group * 256 + thread % 4 * 2;
  __nv_bfloat16* out = p.out + (row * p.heads + head) * kDim + pair;
  const float* rope = p.rope + row * p.rope_dim + pair - tail;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
#pragma unroll
    for (int k = 0; k < kPart / 2; ++k) o[part][k] = __fmul_rn(o[part][k], factors[k / 2 % 2]);
    if (group * 256 + part * kPart + kPart > tail) {
#pragma unroll
      for (int k = 0; k < kPart / 2; k += 4) {
        const int column = part * kPart + k * 2;
        if (group * 256 + column < tail) continue;
        const float2 turn = *reinterpret_cast<const float2*>(rope + column);
#pragma unroll
        for (int h = 0; h < 2; ++h) TurnBack(turn, &o[part][k + 2 * h], &o[part][k + 2 * h + 1]);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (head + 8 * h >= p.heads) continue;
#pragma unroll
      for (int k = 2 * h; k < kPart / 2; k += 4) {
        *reinterpret_cast<__nv_bfloat162*>(out + 8 * h * kDim + part * kPart + k / 4 * 8) =
            __floats2bfloat162_rn(o[part][k], o[part][k + 1]);
      }
    }
  }
}

// A block's products for the warpgroup's channels, joined with what there is.
__device__ inline void Weigh(uint32_t tile, int group, const uint32_t (&weights)[kKeys / 16][4],
                             const float (&old_weight)[2], const float (&fresh_weight)[2],
                             float (&o)[kParts][kPart / 2]) {
  const uint64_t values = SwizzledRows(tile + static_cast<uint32_t>(group * 4 * kSubtile));
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    float products[kPart / 2] = {};
    StartPart(weights, values, part, products);
    WgmmaWait<0>();
    WgmmaFenceRegisters(products);
#pragma unroll
    for (int k = 0; k < kPart / 2; ++k) {
      const int h = k / 2 % 2;
      o[part][k] = Join(o[part][k], old_weight[h], products[k], fresh_weight[h]);
    }
  }
}

}  // namespace senko::ops::sm90
