// The rows one pass runs, with everything the operators read about them. Rebuilt every step inside fixed capacity.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/step.h"
#include "ops/kv_write/kv_write.h"
#include "ops/rows.h"
#include "tensor/buffer.h"

namespace senko::model {

class RowSet {
 public:
  RowSet(int64_t max_rows, int64_t max_sequences, int64_t rope_pairs);

  // All rows of the sequences; windows start at replay_start.
  void BuildEncoder(std::span<const SequenceInput> sequences, int64_t window, int64_t image_token);
  // Rows from keep_begin on; windows start at tail_start. Staging holds the kept rows only.
  void BuildDecoder(std::span<const SequenceInput> sequences, int64_t window, int64_t image_token);
  // Rotary tables of the rows: plain and compressed frequencies.
  void BuildRope(std::span<const float> inv_freq_plain, std::span<const float> inv_freq_compressed);

  int64_t size() const { return static_cast<int64_t>(positions_.size()); }
  const int64_t* positions() const { return positions_.data(); }
  const int32_t* tokens() const { return tokens_.data(); }
  const int32_t* sequences() const { return sequences_.data(); }
  const uint8_t* is_image() const { return any_image_ ? is_image_.data() : nullptr; }
  // Row of the encoder set each row came from (identity in the encoder set).
  const int64_t* source_rows() const { return source_rows_.data(); }
  const std::vector<ops::SequenceKv>& sequence_kv() const { return sequence_kv_; }
  const int64_t* row_counts() const { return row_counts_.data(); }
  const float* rope(bool compressed) const { return compressed ? rope_compressed_.data() : rope_plain_.data(); }

  ops::RowBatch batch() const;
  // The last KV source in the decoder pass: these rows, but windows and staging of the encoder set.
  ops::RowBatch SeamBatch(const RowSet& encoder) const;

  int64_t bytes() const;

 private:
  void Clear();
  void Add(const SequenceInput& s, int32_t sequence, int64_t begin, int64_t window_floor, int64_t window,
           int64_t image_token, int64_t source_row);

  int64_t max_rows_;
  std::vector<int64_t> positions_, window_begin_, seam_window_begin_, source_rows_, row_counts_;
  std::vector<int32_t> tokens_, sequences_;
  std::vector<uint8_t> is_image_;
  bool any_image_ = false;
  std::vector<ops::SequenceKv> sequence_kv_;
  Buffer<float> rope_plain_, rope_compressed_;  // [max_rows, pairs, 2]
};

// The entries a step completes, for one ratio, and their rotary rows.
class LatentSet {
 public:
  // max_rows 0: no KV source of this ratio, so the set stays empty.
  LatentSet(int ratio, int64_t max_rows, int64_t rope_pairs);
  void Build(std::span<const SequenceInput> sequences, const RowSet& encoder, std::span<const float> inv_freq);
  int64_t size() const { return static_cast<int64_t>(latents_.size()); }
  const ops::LatentRef* latents() const { return latents_.data(); }
  const float* rope() const { return rope_.data(); }
  int64_t bytes() const;

 private:
  int ratio_;
  std::vector<ops::LatentRef> latents_;
  std::vector<int64_t> positions_;
  Buffer<float> rope_;
};

}  // namespace senko::model
