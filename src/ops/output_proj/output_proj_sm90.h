// Grouped output projection on Hopper (model.md 3.4): u[g] = wo_a[g] . o[group g's heads], bf16, then y = wo_b . u with
// u rounded as activations. Two launches: the rounding is in the first one's epilogue.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/linear/linear_sm90.h"

namespace senko::ops {

template <typename Value>
struct BasicOutputProjSm90Params {
  const int32_t* rows = nullptr;  // device
  int64_t max_rows = 0;
  int64_t groups = 0;
  const Value* o = nullptr;       // [rows, groups * wo_a.in], 16-byte aligned
  TiledWeight wo_a;               // [groups * rank, heads * dim / groups]; rank is a multiple of 64
  TiledWeight wo_b;               // [hidden, groups * rank]
  Value* u = nullptr;             // scratch [rows, groups * rank], 16-byte aligned
  Value* y = nullptr;             // [rows, hidden], 16-byte aligned
  bool round_activations = true;  // u in front of wo_b
};
using OutputProjSm90Params = BasicOutputProjSm90Params<__nv_bfloat16>;
void OutputProjSm90(const OutputProjSm90Params& p, cudaStream_t stream);
void OutputProjSm90(const BasicOutputProjSm90Params<float>& p, cudaStream_t stream);

}  // namespace senko::ops
