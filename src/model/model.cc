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
    : Model(&checkpoint, config, std::move(token_map), options) {}

Model::Model(const config::ModelConfig& config, std::vector<int32_t> token_map, const ModelOptions& options)
    : Model(nullptr, config, std::move(token_map), options) {}

Model::Model(const checkpoint::Checkpoint* checkpoint, const config::ModelConfig& config,
             std::vector<int32_t> token_map, const ModelOptions& options)
    : config_(config),
      has_checkpoint_(checkpoint != nullptr),
      options_(options),
      weights_(checkpoint != nullptr ? BindWeights(*checkpoint, config) : DummyWeights(config)),
      page_layout_(config::MakePageLayout(config, options.block_size)),
      slot_layout_(config::MakeSlotLayout(config, options.verify_rows)),
      inv_freq_plain_(ops::RopeInvFreq(PlainRope(config))),
      inv_freq_compressed_(config.kv_sources.empty() ? inv_freq_plain_ : ops::RopeInvFreq(CompressedRope(config))) {
  if (config.engram.layers.empty()) return;
  hasher_ = std::make_unique<engram::Hasher>(config, std::move(token_map));
  if (checkpoint != nullptr) engram_tables_ = std::make_unique<engram::Tables>(*checkpoint, config);
}

}  // namespace senko::model
