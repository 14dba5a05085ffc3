#include "config/kv_layout.h"

#include "base/check.h"
#include "numerics/packed_rows.h"

namespace senko::config {

using numerics::RoundUp;

PageLayout MakePageLayout(const ModelConfig& config, int64_t block_size) {
  SENKO_CHECK(block_size == 64 || block_size == 128 || block_size == 256);
  PageLayout layout;
  layout.block_size = block_size;
  layout.entry_stride = numerics::EntryStride(config.head_dim);
  layout.key_value_bytes = numerics::IndexKeyValueBytes(config.index_dim);
  layout.key_scale_bytes = numerics::IndexKeyScaleBytes(config.index_dim);
  int64_t offset = 0;
  for (int64_t layer : config.kv_sources) {
    PageSource source;
    source.layer = layer;
    source.ratio = config.ratios[static_cast<size_t>(layer)];
    source.entries_per_page = block_size / source.ratio;
    source.entry_offset = offset;
    offset = RoundUp(offset + source.entries_per_page * layout.entry_stride, 256);
    source.key_value_offset = offset;
    offset = RoundUp(offset + source.entries_per_page * layout.key_value_bytes, 256);
    source.key_scale_offset = offset;
    offset = RoundUp(offset + source.entries_per_page * layout.key_scale_bytes, 256);
    layout.sources.push_back(source);
  }
  layout.page_bytes = offset;
  return layout;
}

SlotLayout MakeSlotLayout(const ModelConfig& config, int64_t verify_rows) {
  SlotLayout layout;
  layout.ring_rows = RoundUp(config.window + verify_rows, 16);
  layout.row_stride = numerics::WindowRowStride(config.head_dim);
  layout.ring_bytes = RoundUp(layout.ring_rows * layout.row_stride, 256);
  layout.num_rings = config.num_layers + config.dspark.num_stages;
  layout.pending_offset = layout.num_rings * layout.ring_bytes;
  layout.pending_rows = 1 + verify_rows / 2;
  layout.pending_stride = RoundUp(layout.pending_rows * 2 * config.head_dim * static_cast<int64_t>(sizeof(float)), 256);
  layout.slot_bytes = layout.pending_offset + static_cast<int64_t>(config.kv_sources.size()) * layout.pending_stride;
  return layout;
}

int64_t KvBytesPerToken(const ModelConfig& config) {
  const int64_t row = numerics::EntryBytes(config.head_dim) + numerics::IndexKeyValueBytes(config.index_dim) +
                      numerics::IndexKeyScaleBytes(config.index_dim);
  int64_t twice = 0;
  for (int64_t layer : config.kv_sources) twice += config.ratios[static_cast<size_t>(layer)] == 2 ? row : 2 * row;
  return (twice + 1) / 2;
}

int64_t WindowBytesPerSequence(const ModelConfig& config) {
  return config.num_layers * config.window * numerics::WindowRowBytes(config.head_dim);
}

}  // namespace senko::config
