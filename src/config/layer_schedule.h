// Who owns KV, who indexes, who reuses (model.md 1.2): the per-layer plan everything else follows.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "config/model_config.h"

namespace senko::config {

enum class LayerMode {
  kWindow,   // ratio 0: sliding window only
  kFull,     // owns KV and indexes
  kReindex,  // reads another layer's KV with a selection of its own
  kReuse,    // reads another layer's KV and another layer's selection
};

std::string_view LayerModeName(LayerMode mode);  // "window", "full", "reindex", "reuse"

struct LayerPlan {
  int64_t layer = 0;
  int ratio = 0;  // 0, 1 or 2
  LayerMode mode = LayerMode::kWindow;
  int64_t kv_source = -1;     // layer whose entries this layer reads; -1 for ratio 0
  int64_t index_source = -1;  // layer whose selection this layer uses; -1 for ratio 0
  int kv_source_slot = -1;    // position of kv_source in ModelConfig::kv_sources
  bool owns_kv = false;
  bool indexes = false;
  bool candidate_source = false;          // publishes candidate blocks
  bool restricted_to_candidates = false;  // its selection must lie inside the published blocks
  bool compressed_rope = false;           // ratio > 0: compress_rope_theta with YaRN
  int engram_slot = -1;                   // position in EngramConfig::layers, or -1
};

// One plan per backbone layer. The configuration is already validated.
std::vector<LayerPlan> MakeLayerSchedule(const ModelConfig& config);

}  // namespace senko::config
