// Routed and shared experts on Hopper: grouped up and gate with clamped SwiGLU and routing weight, grouped down. The
// outputs of a row's slots are added in slot order where they are used (mhc_sm90.h), the shared expert's behind them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "ops/linear/linear_sm90.h"
#include "ops/router/router_sm90.h"

namespace senko::ops {

// Experts of equal size. Up has w1's and w3's rows in turn, 64 of each, so that a block's two tiles are gate and up of
// the same columns; then expert lies behind expert.
struct ExpertTiles {
  WeightFormat format = WeightFormat::kFp4;
  // Multiples of 64, or refused. Who tiles another `inter` (288, of 2,304 over 8 GPUs) pads it with rows of zeros in up
  // and columns of zeros in down, which add nothing.
  int64_t inter = 0;
  int64_t hidden = 0;
  const uint8_t* up = nullptr;  // [experts][2 * inter / 64 tiles] of hidden columns
  const uint8_t* up_scales = nullptr;
  const uint8_t* down = nullptr;  // [experts][hidden / 64 tiles] of inter columns
  const uint8_t* down_scales = nullptr;
};

// Pairs of an item (router_sm90.h) that suit a step of so many pairs: one of 8, 16, 32, 64, 128.
int64_t ExpertBlock(int64_t rows, int64_t topk, int64_t num_experts);

// Where blocks leave each other sums of chunks. `shared_inter` 0: no shared expert.
inline constexpr size_t kExpertTicketBytes = 16 * 1024;
size_t ExpertsScratchBytes(int64_t hidden, int64_t inter, int64_t shared_inter);

template <typename Value>
struct BasicExpertsSm90Params {
  const int32_t* num_items = nullptr;  // device
  int64_t max_items = 0;
  const ExpertItem* items = nullptr;
  const int32_t* pairs = nullptr;  // row * topk + slot
  int64_t block = 0;               // of the items
  int64_t topk = 0;
  ExpertTiles weights;
  const Value* x = nullptr;              // [rows, hidden], rounded as activations where they are
  const float* route_weights = nullptr;  // [rows, topk]; null: 1
  float swiglu_limit = 0;                // <= 0: no clamp
  bool round_activations = true;         // in front of down
  Value* h = nullptr;                    // scratch [rows * topk, inter], in the order of `pairs`
  Value* y = nullptr;                    // of pair p: y + (p / topk * y_row_slots + p % topk) * hidden
  int64_t y_row_slots = 0;
  // ExpertsScratchBytes, 256-byte aligned. The first kExpertTicketBytes are zero before the first launch, and left so.
  uint8_t* scratch = nullptr;

  // The shared expert: every row's, weighted 1, into slot `topk` of y. inter 0: none. One expert in kFp8.
  ExpertTiles shared;
  const int32_t* rows = nullptr;  // device
  int64_t max_rows = 0;
  Value* shared_h = nullptr;  // scratch [rows, shared.inter]
};
using ExpertsSm90Params = BasicExpertsSm90Params<__nv_bfloat16>;
void ExpertsSm90(const ExpertsSm90Params& p, cudaStream_t stream);
void ExpertsSm90(const BasicExpertsSm90Params<float>& p, cudaStream_t stream);

}  // namespace senko::ops
