// The fixed activations of a step on a GPU, all of them laid out once from the configuration and the largest step.
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/model.h"
#include "ops/router/router_sm90.h"
#include "runtime/cuda/device_arena.h"

namespace senko::runtime {

struct DeviceWorkspaceLimits {
  int64_t max_rows = 0;        // --max-num-batched-tokens
  int64_t max_positions = 0;   // of one sequence
  int64_t max_drawn_rows = 0;  // rows whose logits are held at once
};

// Rows first. Null pointers where the model has no use for one, or the arena only measures.
struct DeviceWorkspace {
  DeviceWorkspace(const model::Model& model, const DeviceWorkspaceLimits& limits, DeviceArena& arena);

  DeviceWorkspaceLimits limits;

  __nv_bfloat16* encoder_streams;  // [rows, 4, D]
  __nv_bfloat16* decoder_streams;
  float* encoder_pre;  // [rows, 4], delayed from the site before
  float* decoder_pre;
  float* post;  // [rows, 4]
  float* comb;  // [rows, 4, 4]
  float* mix_scratch;
  __nv_bfloat16* x;        // normed input of a sublayer [rows, D]
  __nv_bfloat16* xq;       // the same, rounded as activations
  __nv_bfloat16* latents;  // [rows, q_lora + d]
  __nv_bfloat16* qrq;      // [rows, q_lora]
  __nv_bfloat16* q;        // [rows, heads * d]
  __nv_bfloat16* o;        // [rows, heads * d]
  __nv_bfloat16* u;        // [rows, o_groups * o_lora]
  __nv_bfloat16* y;        // attention's output [rows, D]
  __nv_bfloat16* slots;    // the experts' outputs [rows, topk + shared, D]

  __nv_bfloat16* compressor_c;  // ratio 1 [rows, d]
  float* compressor_cz;         // ratio 2 [rows, 2 d]
  __nv_bfloat16* latent;        // [rows, d]
  __nv_bfloat16* key;           // [rows, index_dim]

  __nv_bfloat16* index_q;  // [rows, index_heads * index_dim]
  __nv_bfloat16* index_w;  // [rows, index_heads]
  uint8_t* index_values;
  uint8_t* index_scales;
  float* index_weights;
  int32_t* selected;  // [rows, index_topk]
  int32_t* selected_count;
  int32_t* candidates;  // [rows, candidate_blocks]
  int32_t* candidate_count;
  uint8_t* select_scratch;
  size_t select_scratch_bytes = 0;

  float* scores;         // router
  int32_t* route_ids;    // [rows, topk]
  float* route_weights;  // [rows, topk]
  int32_t* expert_counts;
  int32_t* pairs;  // [rows * topk]
  ops::ExpertItem* items;
  int32_t* num_items;
  __nv_bfloat16* h;         // [rows * topk, inter]
  __nv_bfloat16* shared_h;  // [rows, shared inter]
  uint8_t* expert_scratch;  // ExpertsScratchBytes, with its tickets as they shall be

  std::vector<__nv_bfloat16*> engram_in;  // per Engram layer [rows, slots * head_dim]
  std::vector<__nv_bfloat16*> engram_kv;  // [rows, 5 D]

  uint8_t* staging;           // [layers][rows] packed window rows
  size_t staging_stride = 0;  // bytes from layer to layer
  float* logits;              // [max_drawn_rows, vocab]
  __nv_bfloat16* drawn_x;     // [max_drawn_rows, D]
};

}  // namespace senko::runtime
