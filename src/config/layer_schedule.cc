#include "config/layer_schedule.h"

#include <algorithm>

#include "base/check.h"

namespace senko::config {
namespace {

// The largest element <= layer, or -1.
int64_t LastAtOrBefore(const std::vector<int64_t>& ascending, int64_t layer) {
  auto it = std::upper_bound(ascending.begin(), ascending.end(), layer);
  return it == ascending.begin() ? -1 : *(it - 1);
}

int PositionOf(const std::vector<int64_t>& values, int64_t value) {
  auto it = std::find(values.begin(), values.end(), value);
  return it == values.end() ? -1 : static_cast<int>(it - values.begin());
}

}  // namespace

std::string_view LayerModeName(LayerMode mode) {
  switch (mode) {
    case LayerMode::kWindow:
      return "window";
    case LayerMode::kFull:
      return "full";
    case LayerMode::kReindex:
      return "reindex";
    case LayerMode::kReuse:
      return "reuse";
  }
  return "?";
}

std::vector<LayerPlan> MakeLayerSchedule(const ModelConfig& config) {
  SENKO_CHECK(static_cast<int64_t>(config.ratios.size()) == config.num_layers);
  std::vector<LayerPlan> plans;
  for (int64_t l = 0; l < config.num_layers; ++l) {
    LayerPlan plan;
    plan.layer = l;
    plan.ratio = config.ratios[static_cast<size_t>(l)];
    plan.engram_slot = PositionOf(config.engram.layers, l);
    plan.compressed_rope = plan.ratio > 0;
    if (plan.ratio > 0) {
      plan.kv_source = LastAtOrBefore(config.kv_sources, l);
      plan.index_source = LastAtOrBefore(config.index_sources, l);
      SENKO_CHECK(plan.kv_source >= 0 && plan.index_source >= plan.kv_source);
      plan.kv_source_slot = PositionOf(config.kv_sources, plan.kv_source);
      plan.owns_kv = plan.kv_source == l;
      plan.indexes = plan.index_source == l;
      plan.mode = plan.owns_kv ? LayerMode::kFull : plan.indexes ? LayerMode::kReindex : LayerMode::kReuse;
      plan.candidate_source = config.candidate_source == l;
      plan.restricted_to_candidates = config.candidate_source >= 0 && plan.index_source > config.candidate_source;
    }
    plans.push_back(plan);
  }
  return plans;
}

}  // namespace senko::config
