// Every backbone weight by its place in the model (model.md 2). Large tensors are views into the checkpoint's mapping;
// small vectors are widened to aligned float32 once.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "config/layer_schedule.h"
#include "config/model_config.h"
#include "ops/experts/experts.h"
#include "ops/linear/linear.h"
#include "tensor/buffer.h"

namespace senko::model {

// One mHC site: float32 projection and its affine parameters.
struct MhcWeights {
  ops::WeightView fn;            // F32 [(2 + hc) * hc, hc * D]
  const float* base = nullptr;   // [(2 + hc) * hc]
  const float* scale = nullptr;  // [3]
};

// KV-source layers only.
struct CompressorWeights {
  ops::WeightView wkv;            // bf16 [d, D]
  ops::WeightView wgate;          // bf16 [d, D]; ratio 2 only
  const float* norm = nullptr;    // [d]
  ops::WeightView wk;             // bf16 [index_dim, d]
  const float* k_norm = nullptr;  // [index_dim]
};

// Index-source layers only.
struct IndexerWeights {
  ops::WeightView wq_b;          // fp8 [index_heads * index_dim, q_lora]
  ops::WeightView weights_proj;  // bf16 [index_heads, D]
};

struct EngramWeights {
  ops::WeightView wkv;              // fp8 [(hc + 1) * D, slots * head_dim]
  const float* q_weight = nullptr;  // [hc, D]
  const float* k_weight = nullptr;  // [hc, D]
};

struct LayerWeights {
  config::LayerPlan plan;
  MhcWeights attn_site;
  MhcWeights ffn_site;
  const float* attn_norm = nullptr;  // [D]
  const float* ffn_norm = nullptr;   // [D]
  const float* q_norm = nullptr;     // [q_lora]
  const float* kv_norm = nullptr;    // [d]
  const float* sink = nullptr;       // [heads]
  ops::WeightView wq_a;              // fp8 [q_lora, D]
  ops::WeightView wq_b;              // fp8 [heads * d, q_lora]
  ops::WeightView wkv;               // fp8 [d, D]
  ops::WeightView wo_a;              // fp8 [o_groups * o_lora, heads * d / o_groups]
  ops::WeightView wo_b;              // fp8 [D, o_groups * o_lora]
  std::optional<CompressorWeights> compressor;
  std::optional<IndexerWeights> indexer;
  std::optional<EngramWeights> engram;
  ops::WeightView gate;            // bf16 [experts, D]
  const float* bias = nullptr;     // [experts]
  const float* bias_vl = nullptr;  // [experts]
  std::vector<ops::ExpertWeights> experts;
  ops::ExpertWeights shared;  // empty views without shared experts

  // Bytes a decoded token reads from this layer, Engram rows apart.
  int64_t ActiveBytes(int64_t experts_per_token) const;
};

struct Weights {
  const uint8_t* embed = nullptr;  // bf16 [vocab, D], any alignment
  ops::WeightView head;            // bf16 [vocab, D]
  const float* norm = nullptr;     // [D]
  std::vector<LayerWeights> layers;
  std::vector<Buffer<float>> vectors;  // owns every widened vector above

  // Bytes of weights one decoded token reads, the head included: the decode roofline.
  int64_t ActiveBytes(int64_t experts_per_token) const;
};

// What BindWeights would give, without any data: shapes and formats only, every pointer null. For a backend that makes
// its own random weights to be measured with.
Weights DummyWeights(const config::ModelConfig& config);

// Binds a validated checkpoint, which must outlive the result. Errors: kCorrupt naming a tensor that is missing or
// of another type or shape than the configuration asks for; kNumerical naming file, tensor and element where a vector
// that is widened holds a NaN or infinity (the large tensors are not read here).
Weights BindWeights(const checkpoint::Checkpoint& checkpoint, const config::ModelConfig& config);

}  // namespace senko::model
