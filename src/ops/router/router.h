// MoE routing (model.md 3.8): gate GEMM, sqrt(softplus), bias for selection only, top-k, normalised weights,
// and the dispatch lists the experts walk.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "ops/linear/linear.h"

namespace senko::ops {

inline constexpr int64_t kMaxTopk = 64;

struct RouterParams {
  int64_t rows = 0;
  int64_t num_experts = 0;
  int64_t topk = 0;                   // 1 .. kMaxTopk
  const float* x = nullptr;           // [rows, hidden]
  WeightView gate;                    // bf16 [num_experts, hidden]
  const float* bias = nullptr;        // [num_experts], text rows
  const float* bias_vl = nullptr;     // [num_experts], image rows
  const uint8_t* is_image = nullptr;  // [rows] or null
  float temperature = 1;
  float scaling = 1;         // routed_scaling_factor
  bool normalise = true;     // applies only with topk > 1
  float* scores = nullptr;   // [rows, num_experts]: scratch, then sqrt(softplus(gate / temperature))
  int32_t* ids = nullptr;    // [rows, topk], by descending score + bias (NaN last), ties to the lower id
  float* weights = nullptr;  // [rows, topk]
};
void RouterReference(const RouterParams& p, ThreadPool& pool);
void RouterCpu(const RouterParams& p, ThreadPool& pool);

// (row, slot) pairs grouped by expert, rows ascending inside an expert.
struct DispatchLists {
  int32_t* expert_begin = nullptr;  // [num_experts + 1]
  int32_t* pairs = nullptr;         // [rows * topk]: row * topk + slot
};
void MakeDispatchLists(const int32_t* ids, int64_t rows, int64_t topk, int64_t num_experts, DispatchLists lists);

}  // namespace senko::ops
