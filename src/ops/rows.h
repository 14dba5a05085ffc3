// The rows of a step and where their KV lives: PODs shared by the operators' contracts.
//
// Every array is indexed by row or by sequence and is owned by the caller for the duration of a call. Pointers into
// weights may have any alignment (safetensors packs tensors back to back); activations are 64-byte aligned at row 0.
#pragma once

#include <cstdint>

namespace senko::ops {

// One sequence of the step, as the operators see it.
struct SequenceKv {
  const int32_t* pages = nullptr;  // page k of the slab holds positions [k * block_size, (k + 1) * block_size)
  uint8_t* slot = nullptr;         // private state (config::SlotLayout)
  // This call's new window rows: position p >= first_new lies in staging row staging_begin + (p - first_new);
  // older positions lie in the ring.
  int64_t first_new = 0;
  int64_t staging_begin = 0;
};

// Query rows of one call.
struct RowBatch {
  int64_t num_rows = 0;
  const int64_t* positions = nullptr;     // [num_rows] absolute
  const int32_t* sequences = nullptr;     // [num_rows] index into SequenceKv
  const int64_t* window_begin = nullptr;  // [num_rows] first window position the row sees; the last is its own
  const SequenceKv* sequence_kv = nullptr;
  int64_t num_sequences = 0;
};

// One layer's window rows: rings inside the slots, and the staging rows of this step.
// A row is [dim e4m3][dim/32 ue8m0] (numerics/packed_rows.h).
struct WindowView {
  int64_t ring_offset = 0;  // bytes from the slot's start
  int64_t ring_rows = 0;    // slot index = position mod ring_rows
  int64_t row_stride = 0;   // bytes, ring and staging
  uint8_t* staging = nullptr;
};

// One KV source's entries and index keys inside the pages.
struct EntryView {
  uint8_t* slab = nullptr;  // page p starts at slab + p * page_bytes
  int64_t page_bytes = 0;
  int64_t entries_per_page = 0;
  int64_t entry_offset = 0;
  int64_t entry_stride = 0;
  int64_t key_value_offset = 0;
  int64_t key_value_bytes = 0;
  int64_t key_scale_offset = 0;
  int64_t key_scale_bytes = 0;

  uint8_t* Page(const SequenceKv& s, int64_t entry) const {
    return slab + int64_t{s.pages[entry / entries_per_page]} * page_bytes;
  }
  uint8_t* Entry(const SequenceKv& s, int64_t entry) const {
    return Page(s, entry) + entry_offset + entry % entries_per_page * entry_stride;
  }
  uint8_t* KeyValues(const SequenceKv& s, int64_t entry) const {
    return Page(s, entry) + key_value_offset + entry % entries_per_page * key_value_bytes;
  }
  uint8_t* KeyScales(const SequenceKv& s, int64_t entry) const {
    return Page(s, entry) + key_scale_offset + entry % entries_per_page * key_scale_bytes;
  }
};

}  // namespace senko::ops
