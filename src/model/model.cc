#include "model/model.h"

#include <utility>

#include "ops/norm/norm.h"

namespace senko::model {
namespace {

ops::RopeSpec PlainRope(const config::ModelConfig& config) {
  ops::RopeSpec spec;
  spec.rope_dim = config.rope_dim;
  spec.base = config.rope_theta;
  return spec;
}

ops::RopeSpec CompressedRope(const config::ModelConfig& config) {
  ops::RopeSpec spec;
  spec.rope_dim = config.rope_dim;
  spec.base = config.compress_rope_theta;
  spec.factor = config.yarn.factor;
  spec.beta_fast = config.yarn.beta_fast;
  spec.beta_slow = config.yarn.beta_slow;
  spec.original_max_positions = config.yarn.original_max_positions;
  return spec;
}

}  // namespace

Model::Model(const checkpoint::Checkpoint& checkpoint, const config::ModelConfig& config,
             std::vector<int32_t> token_map, const ModelOptions& options)
    : config_(config),
      options_(options),
      weights_(BindWeights(checkpoint, config)),
      page_layout_(config::MakePageLayout(config, options.block_size)),
      slot_layout_(config::MakeSlotLayout(config, options.verify_rows)),
      inv_freq_plain_(ops::RopeInvFreq(PlainRope(config))),
      inv_freq_compressed_(config.kv_sources.empty() ? inv_freq_plain_ : ops::RopeInvFreq(CompressedRope(config))) {
  if (config.engram.layers.empty()) return;
  hasher_ = std::make_unique<engram::Hasher>(config, std::move(token_map));
  engram_tables_ = std::make_unique<engram::Tables>(checkpoint, config);
}

}  // namespace senko::model
