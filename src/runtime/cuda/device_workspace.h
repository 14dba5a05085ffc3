// The fixed activations of a step on a GPU, all of them laid out once from the configuration and the largest step.
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>
#include <memory>
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

// What has one type whatever the numerics. Rows first. Null pointers where the model has no use for one, or the arena
// only measures.
struct DeviceWorkspace {
  DeviceWorkspace(const model::Model& model, const DeviceWorkspaceLimits& limits, DeviceArena& arena);
  virtual ~DeviceWorkspace() = default;

  DeviceWorkspaceLimits limits;

  float* encoder_pre;  // [rows, hc], delayed from the site before
  float* decoder_pre;
  float* post;  // [rows, hc]
  float* comb;  // [rows, hc, hc]
  float* mix_scratch;

  float* compressor_cz;  // ratio 2 [rows, 2 d]

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
  uint8_t* expert_scratch;  // ExpertsScratchBytes, with its tickets as they shall be

  std::vector<__nv_bfloat16*> engram_in;  // per Engram layer [rows, slots * head_dim], exact in bf16

  uint8_t* staging;           // [layers][rows] packed window rows
  size_t staging_stride = 0;  // bytes from layer to layer
  float* logits;              // [max_drawn_rows, vocab]
};

// With the activations: of bf16, or of float where the numerics have no rounding points.
template <typename Value>
struct BasicDeviceWorkspace final : DeviceWorkspace {
  BasicDeviceWorkspace(const model::Model& model, const DeviceWorkspaceLimits& limits, DeviceArena& arena);

  Value* encoder_streams;  // [rows, hc, D]
  Value* decoder_streams;
  Value* x;                       // normed input of a sublayer [rows, D]
  Value* xq;                      // the same, rounded as activations; x itself where nothing is rounded
  Value* latents;                 // [rows, q_lora + d]
  Value* qrq;                     // [rows, q_lora]
  Value* q;                       // [rows, heads * d]
  Value* o;                       // [rows, heads * d]
  Value* u;                       // [rows, o_groups * o_lora]
  Value* y;                       // attention's output [rows, D]
  Value* slots;                   // the experts' outputs [rows, topk + shared, D]
  Value* compressor_c;            // ratio 1 [rows, d]
  Value* latent;                  // [rows, d]
  Value* key;                     // [rows, index_dim]
  Value* index_q;                 // [rows, index_heads * index_dim]
  Value* index_w;                 // [rows, index_heads]
  Value* h;                       // [rows * topk, inter]
  Value* shared_h;                // [rows, shared inter]
  Value* drawn_x;                 // [max_drawn_rows, D]
  std::vector<Value*> engram_kv;  // per Engram layer [rows, hc + 1, D]
};

// The one of the model's numerics.
std::unique_ptr<DeviceWorkspace> MakeDeviceWorkspace(const model::Model& model, const DeviceWorkspaceLimits& limits,
                                                     DeviceArena& arena);

}  // namespace senko::runtime
