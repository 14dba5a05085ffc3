// The fixed activations of a step. Sized once from the configuration and the largest step; nothing grows later.
#pragma once

#include <cstdint>

#include "config/model_config.h"
#include "model/row_set.h"
#include "tensor/buffer.h"

namespace senko::model {

struct WorkspaceLimits {
  int64_t max_rows = 512;     // --max-num-batched-tokens
  int64_t max_sequences = 1;  // --max-num-seqs
};

// All float buffers are [max_rows, ...], rows first. Owned by one executor; one step at a time.
class Workspace {
 public:
  Workspace(const config::ModelConfig& config, const WorkspaceLimits& limits);

  const WorkspaceLimits limits;

  RowSet encoder;
  RowSet decoder;
  LatentSet latents1;  // ratio 1
  LatentSet latents2;  // ratio 2

  Buffer<float> stream;    // X [rows, hc, D]
  Buffer<float> pre;       // [rows, hc], delayed from the previous site
  Buffer<float> pre_next;  // [rows, hc]
  Buffer<float> post;      // [rows, hc]
  Buffer<float> comb;      // [rows, hc, hc]
  Buffer<float> mixes;     // [rows, (2 + hc) * hc]
  Buffer<float> x;         // normed input of attention or MoE [rows, D]
  Buffer<float> xq;        // the same, activation-rounded
  Buffer<float> y;         // output of attention or MoE [rows, D]
  Buffer<float> qr;        // [rows, q_lora]
  Buffer<float> qrq;       // [rows, q_lora]
  Buffer<float> q;         // [rows, heads * d]
  Buffer<float> o;         // [rows, heads * d]
  Buffer<float> kv;        // [rows, d]
  Buffer<float> c;         // compressor latents [rows, d]
  Buffer<float> z;         // compressor gates [rows, d]
  Buffer<float> latent;    // [rows, d]
  Buffer<float> key;       // [rows, index_dim]
  Buffer<float> index_q;   // [rows, index_heads * index_dim]
  Buffer<uint8_t> index_q_values;
  Buffer<uint8_t> index_q_scales;
  Buffer<float> index_w;     // [rows, index_heads]
  Buffer<int32_t> selected;  // [rows, index_topk]
  Buffer<int32_t> selected_count;
  Buffer<int32_t> candidates;  // [rows, candidate_blocks]
  Buffer<int32_t> candidate_count;
  Buffer<int64_t> visible;       // [rows]
  Buffer<float> u;               // [rows, o_groups * o_lora]
  Buffer<float> scores;          // router [rows, experts]
  Buffer<int32_t> route_ids;     // [rows, topk]
  Buffer<float> route_weights;   // [rows, topk]
  Buffer<int32_t> expert_begin;  // [experts + 1]
  Buffer<int32_t> pairs;         // [rows * topk]
  Buffer<float> experts;         // ops::ExpertsScratchFloats
  Buffer<int64_t> engram_rows;   // [rows, slots]
  Buffer<float> engram_in;       // [rows, slots * head_dim]
  Buffer<float> engram_kv;       // [rows, (hc + 1) * D]
  Buffer<uint8_t> staging;       // [rows] packed window rows, shared by all layers
  Buffer<uint8_t> seam_staging;  // the last KV source's, read again by the decoder pass

  int64_t bytes() const;  // of everything above
};

}  // namespace senko::model
