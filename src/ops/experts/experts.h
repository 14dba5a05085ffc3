// Routed and shared experts (model.md 3.8): grouped FP4 up and gate, clamped SwiGLU, routing weight, down; outputs
// added in slot order, then the shared expert, in float32, rounded to bf16 once.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "ops/linear/linear.h"
#include "ops/router/router.h"

namespace senko::ops {

struct ExpertWeights {
  WeightView w1;  // gate [inter, hidden]
  WeightView w3;  // up   [inter, hidden]
  WeightView w2;  // down [hidden, inter]
};

struct ExpertsParams {
  int64_t rows = 0;
  int64_t hidden = 0;
  int64_t inter = 0;         // of a routed expert
  int64_t shared_inter = 0;  // 0: no shared expert
  int64_t num_experts = 0;
  int64_t topk = 0;
  const float* x = nullptr;                // [rows, hidden], already activation-rounded where lin8 asks
  const ExpertWeights* experts = nullptr;  // [num_experts]
  ExpertWeights shared;
  const float* route_weights = nullptr;  // [rows, topk]
  DispatchLists dispatch;
  float swiglu_limit = 0;  // <= 0: no clamp
  bool round_bf16 = false;
  bool round_activations = false;  // in front of w2
  float* scratch = nullptr;        // ExpertsScratchFloats(...) floats
  float* y = nullptr;              // [rows, hidden]
};

// Fixed by the largest step, whatever the routing (also when every row picks the same experts).
int64_t ExpertsScratchFloats(int64_t rows, int64_t topk, int64_t hidden, int64_t inter, int64_t shared_inter);

void ExpertsReference(const ExpertsParams& p, ThreadPool& pool);
void ExpertsCpu(const ExpertsParams& p, ThreadPool& pool);

}  // namespace senko::ops
