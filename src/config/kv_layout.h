// Sizes and offsets of pages and slots (architecture.md section 3). Plain data: the ops' contracts carry these.
#pragma once

#include <cstdint>
#include <vector>

#include "config/model_config.h"

namespace senko::config {

// One KV source's part of a page. Offsets are bytes from the page's start and multiples of 256.
struct PageSource {
  int64_t layer = 0;
  int ratio = 1;                 // tokens per entry
  int64_t entries_per_page = 0;  // block_size / ratio
  int64_t entry_offset = 0;      // entries_per_page rows of entry_stride bytes
  int64_t key_value_offset = 0;  // entries_per_page rows of key_value_bytes
  int64_t key_scale_offset = 0;  // entries_per_page rows of key_scale_bytes
};

// A page holds `block_size` positions of the global KV of all sources.
struct PageLayout {
  int64_t block_size = 128;  // tokens
  int64_t entry_stride = 0;  // bytes
  int64_t key_value_bytes = 0;
  int64_t key_scale_bytes = 0;
  int64_t page_bytes = 0;
  std::vector<PageSource> sources;  // in the order of ModelConfig::kv_sources
};

// block_size: 64, 128 or 256.
PageLayout MakePageLayout(const ModelConfig& config, int64_t block_size);

// Everything private to one sequence. Offsets are bytes from the slot's start, multiples of 256.
struct SlotLayout {
  int64_t ring_rows = 0;   // window + the most rows a step may verify, rounded up to 16
  int64_t row_stride = 0;  // bytes of a window row
  int64_t ring_bytes = 0;  // ring_rows * row_stride, rounded up to 256
  int64_t num_rings = 0;   // backbone layers, then draft stages
  // Latent c and gate z of each ratio-2 source's last first-of-a-pair tokens, float32 [2, head_dim] each: token p lies
  // at p / 2 mod pending_rows. One would do if no row were taken back; a step of k rows to verify passes k / 2 more.
  int64_t pending_rows = 1;
  int64_t pending_offset = 0;
  int64_t pending_stride = 0;  // bytes per source
  int64_t slot_bytes = 0;

  int64_t RingOffset(int64_t ring) const { return ring * ring_bytes; }
  int64_t PendingOffset(int64_t source_slot) const { return pending_offset + source_slot * pending_stride; }
};

// verify_rows: the most rows of one sequence a decode step may carry (1 without speculation).
SlotLayout MakeSlotLayout(const ModelConfig& config, int64_t verify_rows);

// Unpadded cost of one token of context in the released formats: 890 for the released model. Ratio-2 sources
// count half an entry.
int64_t KvBytesPerToken(const ModelConfig& config);

// Window rows alone, backbone layers only: 2,703,360 for the released model.
int64_t WindowBytesPerSequence(const ModelConfig& config);

}  // namespace senko::config
