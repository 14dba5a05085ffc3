// What attention's blocks of threads have in shared memory, and who is who among their warps.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/ptx.cuh"
#include "ops/attention/attention_keys_sm90.cuh"

namespace senko::ops::sm90 {

using namespace cuda;  // NOLINT: the instructions

inline constexpr int kHeads = 64, kDim = 512, kStages = 2;
inline constexpr int kConsumers = 256, kProducers = 8;  // threads; warps, behind them
inline constexpr int kKeysEach = kKeys / kProducers;    // of a block, to a producer
inline constexpr int kThreads = kConsumers + kProducers * 32;
inline constexpr int kSubtile = 8192;               // 64 rows of 64 columns, swizzled
inline constexpr int kTile = kDim / 64 * kSubtile;  // 64 rows of 512 columns
inline constexpr int kMaxRope = 64;
inline constexpr int kQueryAt = 0, kKeysAt = kTile, kRawAt = kKeysAt + kStages * kTile;
inline constexpr int kCodesEach = kDim, kScalesEach = 32;  // bytes of a key, packed
inline constexpr int kScalesAt = kRawAt + kKeys * kCodesEach;
inline constexpr int kRopeAt = kScalesAt + kKeys * kScalesEach;
inline constexpr int kRowsAt = kRopeAt + kMaxRope * 4;  // a RowKeys of each producer
inline constexpr int kBarriersAt = kRowsAt + kProducers * static_cast<int>(sizeof(RowKeys));
inline constexpr int kSharedBytes = kBarriersAt + kStages * 16;
static_assert(kSharedBytes <= 227 * 1024);
inline constexpr int kPart = 64, kParts = kDim / 2 / kPart;  // channels that are weighed at once
inline constexpr float kLog2e = 1.4426950408889634f;

// Who takes a row's blocks of keys: one block of threads after the other; or those of a cluster one or two each.
enum class Regime { kWhole, kOne, kTwo };
template <Regime kRegime>
inline constexpr int kBlocksOf = kRegime == Regime::kOne ? 1 : 2;

// A block of threads of a cluster leaves what its blocks of keys come to in its shared memory, in float32, once queries
// and keys are done with: all heads of the first, and half of the heads of the second, if there is one, at a time.
// Maxima, sums and what is made of them lie where packed keys were.
inline constexpr int kMostTogether = 10;  // of blocks of keys
inline constexpr int kFirstAt = 0, kSecondAt = kHeads * kDim * 4;
static_assert(kSecondAt + kHeads * kDim * 2 <= kRawAt);
inline constexpr int kMaximaAt = kRawAt, kSumsAt = kMaximaAt + 2 * kHeads * 4, kFactorsAt = kSumsAt + 2 * kHeads * 4;
inline constexpr int kJoinsAt = kFactorsAt + kHeads * 4;  // float2 [blocks][heads]
static_assert(kJoinsAt + kMostTogether * kHeads * 8 <= kScalesAt);
inline constexpr int kExchangeAt = kJoinsAt;  // of weights, before that
// Where a head's channel lies: swizzled so that a warp's writes do not meet in a bank.
__device__ inline int StateAt(int head, int channel) { return head * kDim + (channel ^ head % 8 * 8); }

// Byte offset of 16-byte piece `piece` of row `row` in a tile.
__device__ inline uint32_t PieceAt(int row, int piece) {
  return static_cast<uint32_t>(piece / 8 * kSubtile + row * 128 + (piece % 8 ^ row % 8) * 16);
}
__device__ inline void StoreShared(uint32_t at, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ inline uint4 LoadShared16(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at)
               : "memory");
  return v;
}
__device__ inline uint2 LoadShared8(uint32_t at) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
  return v;
}
__device__ inline uint32_t LoadShared4(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}
__device__ inline uint32_t LoadShared1(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}

// Keeps what is made of a value in a loop from being kept in registers across it.
__device__ inline int Afresh(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

}  // namespace senko::ops::sm90
