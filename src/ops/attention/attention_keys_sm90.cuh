// A row's keys on the device, and their expansion from packed bytes to bf16.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "ops/attention/attention_sm90.h"
#include "ops/linear/tiles_sm90.cuh"

namespace senko::ops::sm90 {

inline constexpr int kKeys = static_cast<int>(kAttentionBlock);

// How many keys a row has.
struct RowCounts {
  int num_window, num_selected;

  RowCounts() = default;
  __device__ RowCounts(const AttentionRowsSm90& p, int64_t row) {
    num_window = static_cast<int>(p.rows.positions[row] - p.rows.window_begin[row] + 1);
    num_selected = p.selected != nullptr ? p.selected_count[row] : 0;
  }
  __device__ int WindowBlocks() const { return (num_window + kKeys - 1) / kKeys; }
  __device__ int Blocks() const { return WindowBlocks() + (num_selected + kKeys - 1) / kKeys; }
  // Keys of block `block`'s kind from its first on.
  __device__ int KeysFrom(int block) const {
    const int window_blocks = WindowBlocks();
    return block < window_blocks ? num_window - block * kKeys : num_selected - (block - window_blocks) * kKeys;
  }
};

struct RowKeys : RowCounts {
  SequenceKv sequence;
  int64_t window_begin;
  const int32_t* selected;

  __device__ RowKeys(const AttentionRowsSm90& p, int64_t row) : RowCounts(p, row) {
    sequence = p.rows.sequence_kv[p.rows.sequences[row]];
    window_begin = p.rows.window_begin[row];
    selected = p.selected != nullptr ? p.selected + row * p.selected_stride : nullptr;
  }
  __device__ const uint8_t* WindowKey(const AttentionRowsSm90& p, int k) const {
    const int64_t position = window_begin + k;
    if (position >= sequence.first_new) {
      return p.window.staging + (sequence.staging_begin + position - sequence.first_new) * p.window.row_stride;
    }
    // Positions have 31 bits; a division of 64 is a hundred instructions.
    const uint32_t slot_row = static_cast<uint32_t>(position) % static_cast<uint32_t>(p.window.ring_rows);
    return sequence.slot + p.window.ring_offset + slot_row * p.window.row_stride;
  }
  __device__ const uint8_t* EntryKey(const AttentionRowsSm90& p, int k) const {
    const auto entry = static_cast<uint32_t>(selected[k]);
    return At(p, static_cast<uint32_t>(sequence.pages[entry / static_cast<uint32_t>(p.entries.entries_per_page)]),
              entry);
  }
  // Entry `entry` of a sequence, which lies in page `page` of the slab.
  __device__ static const uint8_t* At(const AttentionRowsSm90& p, uint32_t page, uint32_t entry) {
    return p.entries.slab + int64_t{page} * p.entries.page_bytes + p.entries.entry_offset +
           entry % static_cast<uint32_t>(p.entries.entries_per_page) * p.entries.entry_stride;
  }
};

inline constexpr uint32_t kNanPairs = 0x7FC07FC0u;

// Keys are expanded to 2^-7 of themselves: so the largest scale of an entry, placed with the power that its codes want,
// is a bf16, and eight codes take four multiplications. Powers of two are given back exactly.
inline constexpr float kKeyScale = 0x1p-7f;

__device__ inline uint32_t WindowScale(uint32_t scale) {
  return scale == 255 ? kNanPairs : PowerPairs(static_cast<int>(scale) - 127);
}
// Eight e4m3 codes times a ue8m0 scale (WindowScale), rounded to bf16, which is exact for all scales that are written
// (2^-22 and above; 2^-127 would be zero here). A NaN is a scale of 255: no writer has NaN codes without it.
__device__ inline uint4 ExpandWindow(uint2 codes, uint32_t scale) {
  uint4 out;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t w = i == 0 ? codes.x : codes.y;
    // Neighbours: codes 0 and 1 of the word, then 2 and 3.
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint32_t two = __byte_perm(w, 0, k == 0 ? 0x1404 : 0x3424);  // code in the high byte of each half
      const uint32_t placed = (two & 0x80008000u) | ((two >> 4) & 0x07F007F0u);
      (&out.x)[2 * i + k] = MultiplyPairs(MultiplyPairs(placed, PowerPairs(120 - 7)), scale);
    }
  }
  return out;
}

// An entry's e4m3 scale, never negative, times 2^119.
__device__ inline uint32_t EntryScale(uint32_t scale) {
  const uint32_t placed = scale * 0x00100010u;
  return scale == 0x7F ? kNanPairs : MultiplyPairs(MultiplyPairs(placed, PowerPairs(120)), PowerPairs(126 - 7));
}
// Eight e2m1 codes (low nibble first) times a scale (EntryScale), exactly.
__device__ inline uint4 ExpandEntry(uint32_t codes, uint32_t scale) {
  uint32_t apart[4];  // codes k and k + 4
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    // Both places of a code, sign to bit 15 and the rest to bit 6, by one product, since shifts and masks are what
    // there are most of.
    const uint32_t nibbles = (k < 2 ? codes : codes >> 8) & (k % 2 == 0 ? 0x000F000Fu : 0x00F000F0u);
    apart[k] = MultiplyPairs(nibbles * (k % 2 == 0 ? 0x1040u : 0x0104u) & 0x81C081C0u, scale);
  }
  return uint4{__byte_perm(apart[0], apart[1], 0x5410), __byte_perm(apart[2], apart[3], 0x5410),
               __byte_perm(apart[0], apart[1], 0x7632), __byte_perm(apart[2], apart[3], 0x7632)};
}

}  // namespace senko::ops::sm90
