// A loaded model and its two passes (architecture.md section 1).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "config/kv_layout.h"
#include "config/layer_schedule.h"
#include "engram/hasher.h"
#include "engram/tables.h"
#include "model/probe.h"
#include "model/step.h"
#include "model/weights.h"
#include "model/workspace.h"
#include "numerics/numerics_mode.h"
#include "ops/op_table.h"

namespace senko::model {

struct ModelOptions {
  numerics::NumericsMode numerics = numerics::NumericsMode::kModel;
  ops::OpTable ops;
  int64_t block_size = 128;  // --block-size
  int64_t verify_rows = 1;   // most rows of one sequence in a decode step
};

// Immutable after construction, so any number of executors may share it.
class Model {
 public:
  // `checkpoint` and `token_map` (token id -> Engram compressed id; may be empty without Engram) outlive the model.
  // Errors: as BindWeights; kInvalidArgument when the token map does not fit the configuration.
  Model(const checkpoint::Checkpoint& checkpoint, const config::ModelConfig& config, std::vector<int32_t> token_map,
        const ModelOptions& options);
  // Without a checkpoint (DummyWeights, no Engram tables): for a backend that makes its own random weights.
  Model(const config::ModelConfig& config, std::vector<int32_t> token_map, const ModelOptions& options);

  const config::ModelConfig& config() const { return config_; }
  const config::PageLayout& page_layout() const { return page_layout_; }
  const config::SlotLayout& slot_layout() const { return slot_layout_; }
  const Weights& weights() const { return weights_; }
  const ModelOptions& options() const { return options_; }
  std::span<const float> inv_freq(bool compressed) const {
    return compressed ? std::span<const float>(inv_freq_compressed_) : std::span<const float>(inv_freq_plain_);
  }
  bool has_checkpoint() const { return has_checkpoint_; }
  // Null without Engram layers; the tables also without a checkpoint.
  const engram::Hasher* hasher() const { return hasher_.get(); }
  const engram::Tables* engram_tables() const { return engram_tables_.get(); }
  bool rounds_to_bf16() const { return numerics::RoundsToBf16(options_.numerics); }
  bool rounds_activations() const { return numerics::RoundsActivations(options_.numerics); }

 private:
  Model(const checkpoint::Checkpoint* checkpoint, const config::ModelConfig& config, std::vector<int32_t> token_map,
        const ModelOptions& options);

  config::ModelConfig config_;
  bool has_checkpoint_;
  ModelOptions options_;
  Weights weights_;
  config::PageLayout page_layout_;
  config::SlotLayout slot_layout_;
  std::vector<float> inv_freq_plain_;
  std::vector<float> inv_freq_compressed_;
  std::unique_ptr<engram::Hasher> hasher_;
  std::unique_ptr<engram::Tables> engram_tables_;
};

// Where a pass runs. `slab` is the pages' memory (cache::PagePool::slab).
struct PassContext {
  const Model& model;
  Workspace& workspace;
  ThreadPool& pool;
  uint8_t* slab = nullptr;
  Probe* probe = nullptr;
};

// Every row through the layers before the last KV source, and that layer's KV production. Leaves the streams, their
// delayed `pre` and the seam's staged window rows in the workspace. Without KV sources it only embeds the rows.
void EncoderPass(const PassContext& context, std::span<const SequenceInput> sequences);

// The kept rows through the rest of the last KV source and the layers after it, final collapse and norm: workspace.x
// holds a hidden row for each row of workspace.decoder. Always follows EncoderPass with the same sequences, also
// when no row is kept: it commits the seam's window rows.
void DecoderPass(const PassContext& context, std::span<const SequenceInput> sequences);

// float32 logits [count, vocab] of decoder rows [first, first + count). finite[count] may be null.
void ComputeLogits(const PassContext& context, int64_t first, int64_t count, float* logits, uint8_t* finite);

}  // namespace senko::model
