// What a step's kernels read about its rows, at fixed device addresses: one copy brings spans, ids and page tables, one
// kernel spreads them over rows (step_spread.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

#include "model/model.h"
#include "model/step.h"
#include "ops/sample/sample_sm90.h"
#include "runtime/cuda/device_arena.h"
#include "runtime/cuda/step_spread.h"

namespace senko::runtime {

// One pass's rows. Device memory.
struct DeviceRows {
  const int32_t* count = nullptr;
  ops::RowBatch batch;  // num_rows and num_sequences are not set
  const int32_t* row_counts = nullptr;
  const float* rope_plain = nullptr;  // [rows, pairs, 2]
  const float* rope_compressed = nullptr;
  const uint8_t* is_image = nullptr;  // null when the model has no images
};

struct DeviceLatents {
  const int32_t* count = nullptr;
  const ops::LatentRef* latents = nullptr;
  const float* rope = nullptr;
};

struct StepBatchLimits {
  int64_t max_rows = 0;
  int64_t max_sequences = 0;
  int64_t max_pages = 0;  // of all sequences' tables together
  int64_t max_drawn_rows = 0;
  int64_t max_draws = 0;  // several may be from one row
};

// Owned by one executor, used by its thread.
class StepBatch {
 public:
  // Takes its device memory from `arena`, and twice the copied block in pinned memory unless that only measures.
  StepBatch(const model::Model& model, const StepBatchLimits& limits, const float* inv_freq_plain,
            const float* inv_freq_compressed, DeviceArena& arena);
  ~StepBatch();
  StepBatch(const StepBatch&) = delete;
  StepBatch& operator=(const StepBatch&) = delete;

  // Writes the sequences into pinned memory and starts the copy. Waits if the copy before last has not ended.
  // `drawn_rows`: the kept rows whose logits are wanted; `draws`: what is drawn from them. Ids below zero as
  // SpreadParams::ids.
  void Send(std::span<const model::SequenceInput> sequences, std::span<const int64_t> drawn_rows,
            std::span<const ops::SampleJobSm90> draws, cudaStream_t stream);
  // The kernel behind the copy. For steps of at most so many rows in either pass.
  void Spread(int64_t max_rows, cudaStream_t stream) const;

  const StepCounts& counts() const { return counts_; }
  std::span<const int64_t> kept_positions() const { return kept_positions_; }
  const StepBatchLimits& limits() const { return limits_; }

  // The encoder pass's rows; the decoder pass's; and those with the last KV source's windows and staging.
  const DeviceRows& encoder() const { return encoder_; }
  const DeviceRows& decoder() const { return decoder_; }
  const DeviceRows& seam() const { return seam_; }
  const DeviceLatents& latents(int ratio) const { return ratio == 2 ? latents2_ : latents1_; }
  const int32_t* num_sequences() const { return &device_counts_->sequences; }
  const int32_t* num_drawn_rows() const { return &device_counts_->drawn_rows; }
  const int32_t* drawn_rows() const { return drawn_rows_; }
  const int32_t* num_draws() const { return &device_counts_->draws; }
  const ops::SampleJobSm90* draws() const { return draws_; }
  const int32_t* tokens() const { return spread_.tokens; }
  const int32_t* source_rows() const { return spread_.source_rows; }
  const int32_t* const* sequence_tokens() const { return spread_.sequence_tokens; }
  const int64_t* sequence_tokens_begin() const { return spread_.sequence_tokens_begin; }
  const int32_t* identity() const { return identity_; }  // 0, 1, ..., max_rows: also a count for who knows it here

  // Where the step before left its drawn tokens.
  void set_drawn_tokens(const int32_t* tokens) { spread_.drawn_tokens = tokens; }

 private:
  StepBatchLimits limits_;
  int64_t block_size_ = 0;  // tokens of a page
  int64_t look_back_ = 0;   // ids before a span that are needed
  StepCounts counts_;
  std::vector<int64_t> kept_positions_;

  // The copied block: counts, spans, drawn rows, draws, then ids and pages, whose place depends on the step.
  size_t spans_at_ = 0, drawn_at_ = 0, draws_at_ = 0, ids_at_ = 0, block_bytes_ = 0;
  uint8_t* block_ = nullptr;
  uint8_t* pinned_[2] = {};
  cudaEvent_t copied_[2] = {};
  int next_ = 0;

  const StepCounts* device_counts_ = nullptr;
  const int32_t* drawn_rows_ = nullptr;
  const ops::SampleJobSm90* draws_ = nullptr;
  int32_t* identity_ = nullptr;
  SpreadParams spread_;
  DeviceRows encoder_, decoder_, seam_;
  DeviceLatents latents1_, latents2_;
};

}  // namespace senko::runtime
