// A row's keys on the device, and their expansion from packed bytes to bf16.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "ops/attention/attention_sm90.h"
#include "ops/linear/tiles_sm90.cuh"

namespace senko::ops::sm90 {

inline constexpr int kKeys = static_cast<int>(kAttentionBlock);

struct RowKeys {
  SequenceKv sequence;
  int64_t window_begin;
  int num_window, num_selected;
  const int32_t* selected;

  __device__ RowKeys(const AttentionSm90Params& p, int64_t row) {
    sequence = p.rows.sequence_kv[p.rows.sequences[row]];
    window_begin = p.rows.window_begin[row];
    num_window = static_cast<int>(p.rows.positions[row] - window_begin + 1);
    num_selected = p.selected != nullptr ? p.selected_count[row] : 0;
    selected = p.selected != nullptr ? p.selected + row * p.selected_stride : nullptr;
  }
  __device__ int WindowBlocks() const { return (num_window + kKeys - 1) / kKeys; }
  __device__ int Blocks() const { return WindowBlocks() + (num_selected + kKeys - 1) / kKeys; }

  __device__ const uint8_t* WindowKey(const AttentionSm90Params& p, int k) const {
    const int64_t position = window_begin + k;
    if (position >= sequence.first_new) {
      return p.window.staging + (sequence.staging_begin + position - sequence.first_new) * p.window.row_stride;
    }
    return sequence.slot + p.window.ring_offset + position % p.window.ring_rows * p.window.row_stride;
  }
  __device__ const uint8_t* EntryKey(const AttentionSm90Params& p, int k) const {
    const int64_t entry = selected[k], in_page = p.entries.entries_per_page;
    return p.entries.slab + int64_t{sequence.pages[entry / in_page]} * p.entries.page_bytes + p.entries.entry_offset +
           entry % in_page * p.entries.entry_stride;
  }
};

inline constexpr uint32_t kNanPairs = 0x7FC07FC0u;

// Eight e4m3 codes times a ue8m0 scale, rounded to bf16, which is exact for all scales that are written (2^-22 and
// above; 2^-127 would be zero here). A NaN is a scale of 255: no writer has NaN codes without it.
__device__ inline uint4 ExpandWindow(uint2 codes, uint32_t scale) {
  const uint32_t up = PowerPairs(120), rest = scale == 255 ? kNanPairs : PowerPairs(static_cast<int>(scale) - 127);
  uint4 out;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t w = i == 0 ? codes.x : codes.y;
    // Neighbours: codes 0 and 1 of the word, then 2 and 3.
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint32_t two = __byte_perm(w, 0, k == 0 ? 0x1404 : 0x3424);  // code in the high byte of each half
      const uint32_t placed = (two & 0x80008000u) | ((two >> 4) & 0x07F007F0u);
      (&out.x)[2 * i + k] = MultiplyPairs(MultiplyPairs(placed, up), rest);
    }
  }
  return out;
}

// Eight e2m1 codes (low nibble first) times an e4m3 scale, exactly.
__device__ inline uint4 ExpandEntry(uint32_t codes, uint32_t scale) {
  const uint32_t twice = scale << 8 | scale << 24;
  const uint32_t scale_pair =  // never negative
      scale == 0x7F ? kNanPairs : MultiplyPairs((twice >> 4) & 0x07F007F0u, PowerPairs(120));
  uint4 out;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const uint32_t pair = codes >> (8 * k);  // nibbles 0 and 1
    const uint32_t two = (pair & 0xFu) << 12 | (pair & 0xF0u) << 24;
    const uint32_t placed = (two & 0x80008000u) | ((two >> 6) & 0x01C001C0u);
    (&out.x)[k] = MultiplyPairs(MultiplyPairs(placed, PowerPairs(126)), scale_pair);
  }
  return out;
}

}  // namespace senko::ops::sm90
