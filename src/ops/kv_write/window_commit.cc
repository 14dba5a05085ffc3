#include <algorithm>
#include <cstring>

#include "ops/kv_write/kv_write.h"

namespace senko::ops {

void WindowCommit(const WindowCommitParams& p) {
  const WindowView& w = p.window;
  for (int64_t s = 0; s < p.num_sequences; ++s) {
    const SequenceKv& sequence = p.sequences[s];
    uint8_t* ring = sequence.slot + w.ring_offset;
    int64_t row = std::max<int64_t>(0, p.row_counts[s] - w.ring_rows);  // earlier rows would be overwritten at once
    while (row < p.row_counts[s]) {
      const int64_t index = (sequence.first_new + row) % w.ring_rows;
      const int64_t run = std::min(p.row_counts[s] - row, w.ring_rows - index);
      std::memcpy(ring + index * w.row_stride, w.staging + (sequence.staging_begin + row) * w.row_stride,
                  static_cast<size_t>(run * w.row_stride));
      row += run;
    }
  }
}

}  // namespace senko::ops
