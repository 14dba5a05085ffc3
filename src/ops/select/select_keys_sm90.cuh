// Index keys from pages into shared memory and from there, expanded, into the operands of int8 matrix instructions.
//
// A key element is read as 64 + 2 value 2^s, an unsigned byte: one byte permutation per four codes for either sign, and
// no carries. s in [0, 2] is what the block's scale exceeds the least of its key by ("folded"): then all blocks of a
// key count in one unit and a dot product is one integer. Keys whose scales are further apart keep s = 0 and are summed
// a block at a time.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/ptx.cuh"
#include "ops/select/select_sm90.h"

namespace senko::ops {

inline constexpr int kKeyOffset = 64, kMaxKeyFold = 2, kMaxQueryFold = 3;
inline constexpr int kKeyStride = 80;  // bytes of a key in shared memory: eight keys' words fall into different banks
inline constexpr int kMagicBits = 0x4B400000;      // a float32 whose last bit counts 1: adding integers to its bits
inline constexpr float kMagicFloat = 12582912.0f;  // adds them to its value
// Scale codes for which no step of a folded score leaves the normal range, whatever the others are; and |w| is as near
// to 1.
inline constexpr int kLeastFoldCode = 127 - 30, kMostFoldCode = 127 + 30, kMostFoldWeight = 40;

__device__ inline uint32_t Permute(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
  return d;
}

// d = a b^T + c, 16 x 8 x 32, exact.
__device__ inline void Multiply16x8x32(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                       const int (&c)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

// Tables of kKeyOffset + and - the magnitudes doubled, by fold.
__device__ inline uint4 KeyTable(int fold) {
  const uint32_t low = 0x03020100u << fold, high = 0x0C080604u << fold;
  return {0x40404040u + low, 0x40404040u + high, 0x40404040u - low, 0x40404040u - high};
}

// Eight codes to bytes. A selector with its high bit set repeats the table entry's sign, which is 0: so each table
// speaks for its own sign only.
__device__ inline void ExpandKey(uint32_t word, const uint4& table, uint32_t* low, uint32_t* high) {
  const uint32_t flipped = word ^ 0x88888888u;
  *low = Permute(table.x, table.y, word) | Permute(table.z, table.w, flipped);
  *high = Permute(table.x, table.y, word >> 16) | Permute(table.z, table.w, flipped >> 16);
}

// Eight codes of a query to signed bytes, doubled, times 2^fold.
__device__ inline void ExpandQuery(uint32_t word, int fold, uint32_t* low, uint32_t* high) {
  const uint32_t low_table = 0x03020100u << fold, high_table = 0x0C080604u << fold;
  const uint32_t low_negative = __vneg4(low_table), high_negative = __vneg4(high_table);
  const uint32_t magnitudes = word & 0x77777777u, shifted = word << 4;
  const uint32_t low_signs = Permute(word, shifted, 0x9D8Cu), high_signs = Permute(word, shifted, 0xBFAEu);
  *low = (Permute(low_table, high_table, magnitudes) & ~low_signs) |
         (Permute(low_negative, high_negative, magnitudes) & low_signs);
  *high = (Permute(low_table, high_table, magnitudes >> 16) & ~high_signs) |
          (Permute(low_negative, high_negative, magnitudes >> 16) & high_signs);
}

// Least and largest of four scale codes.
__device__ inline void CodeRange(uint32_t codes, int* least, int* most) {
  *least = *most = static_cast<int>(codes & 0xFF);
#pragma unroll
  for (int b = 1; b < 4; ++b) {
    const int code = static_cast<int>(codes >> (8 * b) & 0xFF);
    *least = min(*least, code);
    *most = max(*most, code);
  }
}
__device__ inline bool Foldable(int least, int most, int spread) {
  return most - least <= spread && least >= kLeastFoldCode && most <= kMostFoldCode;
}

// ---- where keys lie ----

struct KeySource {
  const int32_t* pages;
  const int32_t* candidates;  // null: slots are entries
  int block_shift;            // of the candidates' size
  int page_shift;             // of the entries of a page
  int slots;

  __device__ int Entry(int slot) const {
    if (candidates == nullptr) return slot;
    return (candidates[slot >> block_shift] << block_shift) + (slot & ((1 << block_shift) - 1));
  }
};

struct KeyPlace {
  int page, in_page;  // page -1: no key
};
__device__ inline KeyPlace PlaceOf(const KeySource& source, int slot) {
  if (slot >= source.slots) return {-1, 0};
  const int entry = source.Entry(slot);
  return {source.pages[entry >> source.page_shift], entry & ((1 << source.page_shift) - 1)};
}

// A warp's keys as they lie in pages. Scales of absent blocks repeat the first.
template <int kKeys>
struct KeyStage {
  alignas(16) uint8_t values[kKeys * kKeyStride];
  uint32_t scales[kKeys];
};

__device__ inline void CopyAsync4(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

// Begins the copies of the warp's next keys, lane l holding the places of keys l, l + 32, ...; what has no place stays.
// One group of copies, always.
template <int kKeys>
__device__ void CopyKeys(const EntryView& entries, int blocks, const KeyPlace (&places)[kKeys / 32],
                         KeyStage<kKeys>* stage) {
  const int lane = static_cast<int>(threadIdx.x) % 32, part = lane % 4;
#pragma unroll
  for (int h = 0; h < kKeys / 32; ++h) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = i * 8 + lane / 4;
      const int page = __shfl_sync(0xFFFFFFFFu, places[h].page, key);
      const int in_page = __shfl_sync(0xFFFFFFFFu, places[h].in_page, key);
      if (page < 0 || part >= blocks) continue;
      const uint8_t* from = entries.slab + int64_t{page} * entries.page_bytes + entries.key_value_offset +
                            in_page * entries.key_value_bytes + part * 16;
      cuda::CopyAsync16(cuda::SharedAddress(stage->values + (h * 32 + key) * kKeyStride + part * 16), from, true);
    }
    if (places[h].page < 0) continue;
    const uint8_t* scales = entries.slab + int64_t{places[h].page} * entries.page_bytes + entries.key_scale_offset +
                            places[h].in_page * entries.key_scale_bytes;
    if (blocks == 4) {
      CopyAsync4(cuda::SharedAddress(&stage->scales[h * 32 + lane]), scales);
    } else {
      const uint32_t first = scales[0], second = blocks == 2 ? scales[1] : first;
      stage->scales[h * 32 + lane] = first * 0x01010000u + second * 0x100u + first;
    }
  }
  cuda::CommitCopies();
}

// What a warp knows of its expanded keys. words: where folded, a byte a block, 16 times its fold; else the scale codes.
// units: float32 2^(least code - 127).
template <int kKeys>
struct KeyInfo {
  uint32_t words[kKeys];
  float units[kKeys];
};

// Whether all keys of the stage fold, and what is known of them. slot: of key 0. Ends with the warp in step.
template <int kKeys>
__device__ bool InspectKeys(const KeyStage<kKeys>& stage, int slot, int slots, bool may_fold, KeyInfo<kKeys>* info) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t codes[kKeys / 32];
  int least[kKeys / 32];
  bool folds = may_fold;
#pragma unroll
  for (int h = 0; h < kKeys / 32; ++h) {
    const int key = h * 32 + lane;
    codes[h] = slot + key < slots ? stage.scales[key] : 0x7F7F7F7Fu;
    int most;
    CodeRange(codes[h], &least[h], &most);
    folds = folds && Foldable(least[h], most, kMaxKeyFold);
  }
  folds = __all_sync(0xFFFFFFFFu, folds);
#pragma unroll
  for (int h = 0; h < kKeys / 32; ++h) {
    info->words[h * 32 + lane] = folds ? (codes[h] - static_cast<uint32_t>(least[h]) * 0x01010101u) << 4 : codes[h];
    info->units[h * 32 + lane] = __int_as_float(least[h] << 23);  // used where folded: a normal number
  }
  __syncwarp();
  return folds;
}

// Operand a of keys `tile` * 16 .. + 15: a[b] is their block b.
template <bool kFolded, int kKeys>
__device__ inline void ExpandTile(const KeyStage<kKeys>& stage, const KeyInfo<kKeys>& info, const uint4* tables,
                                  int tile, uint32_t (&a)[4][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = tile * 16 + half * 8 + lane / 4;
    const uint32_t folds = kFolded ? info.words[key] : 0;
    const uint8_t* values = stage.values + key * kKeyStride + lane % 4 * 4;
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const uint4 table =
          *reinterpret_cast<const uint4*>(reinterpret_cast<const uint8_t*>(tables) + (folds >> (8 * b) & 0xFF));
      ExpandKey(*reinterpret_cast<const uint32_t*>(values + b * 16), table, &a[b][half], &a[b][half + 2]);
    }
  }
}

}  // namespace senko::ops
