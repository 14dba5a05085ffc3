// From the spans of a step to what the kernels read about each row: one kernel, device memory throughout.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/kv_write/kv_write.h"
#include "ops/rows.h"

namespace senko::runtime {

// How many there are of each in the step.
struct StepCounts {
  int32_t sequences = 0;
  int32_t encoder_rows = 0;
  int32_t decoder_rows = 0;
  int32_t latents1 = 0;  // entries completed, ratio 1
  int32_t latents2 = 0;  // ratio 2
  int32_t drawn_rows = 0;
  int32_t ids = 0;
  int32_t draws = 0;
};

// model::SequenceInput for the device.
struct StepSpan {
  int64_t begin, end, tokens_begin;
  int64_t replay_start, write_floor, keep_begin, tail_start;
  uint8_t* slot;
  int32_t first_id, first_page;                        // in the step's ids and pages
  int32_t encoder_row, decoder_row, latent1, latent2;  // the span's first of each
};

// Rows of one pass, as they are filled.
struct SpreadRows {
  int64_t* positions = nullptr;
  int32_t* sequences = nullptr;
  int64_t* window_begin = nullptr;
  uint8_t* is_image = nullptr;
  ops::SequenceKv* sequence_kv = nullptr;  // [sequences]
  int32_t* row_counts = nullptr;           // [sequences]
  float* rope_plain = nullptr;             // [rows, pairs, 2]
  float* rope_compressed = nullptr;
};

struct SpreadLatents {
  ops::LatentRef* latents = nullptr;  // null: no source of this ratio
  float* rope = nullptr;
};

struct SpreadParams {
  int64_t max_rows = 0;
  int64_t max_sequences = 0;
  const StepCounts* counts = nullptr;
  const StepSpan* spans = nullptr;
  // Below zero: the token drawn in place -1 - id by the step before; of one that could not be drawn, 0.
  const int32_t* ids = nullptr;
  const int32_t* drawn_tokens = nullptr;
  const int32_t* pages = nullptr;
  int64_t window = 0;
  int32_t image_token = -1;
  int64_t rope_pairs = 0;
  const float* inv_freq_plain = nullptr;
  const float* inv_freq_compressed = nullptr;

  SpreadRows encoder, decoder;
  int64_t* seam_window_begin = nullptr;  // of decoder rows, with the encoder's bounds
  int32_t* tokens = nullptr;             // [encoder rows]
  int32_t* source_rows = nullptr;        // [decoder rows]
  SpreadLatents latents1, latents2;
  int32_t* known_ids = nullptr;  // [ids]
  const int32_t** sequence_tokens = nullptr;
  int64_t* sequence_tokens_begin = nullptr;
};
void SpreadStep(const SpreadParams& p, cudaStream_t stream);

}  // namespace senko::runtime
