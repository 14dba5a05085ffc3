// Where a query row's keys lie, in canonical order: window rows by position, then selected entries by index.
#pragma once

#include <cstdint>

#include "ops/attention/attention.h"

namespace senko::ops {

// Keys of a score panel, and channels of a value panel.
inline constexpr int64_t kPanel = 32;

struct KeyRows {
  const SequenceKv* sequence;
  int64_t window_begin;
  int64_t num_window;
  const int32_t* selected;
  int64_t num_selected;
};

inline KeyRows FindKeyRows(const AttentionParams& p, int64_t row) {
  const RowBatch& rows = p.rows;
  const int64_t begin = rows.window_begin[row];
  return {&rows.sequence_kv[rows.sequences[row]], begin, rows.positions[row] - begin + 1,
          p.selected != nullptr ? p.selected + row * p.selected_stride : nullptr,
          p.selected != nullptr ? int64_t{p.selected_count[row]} : 0};
}

// Packed window row of an absolute position: this step's rows in staging, older ones in the ring.
inline const uint8_t* WindowRow(const WindowView& w, const SequenceKv& s, int64_t position) {
  if (position >= s.first_new) return w.staging + (s.staging_begin + position - s.first_new) * w.row_stride;
  return s.slot + w.ring_offset + position % w.ring_rows * w.row_stride;
}

}  // namespace senko::ops
