// Grouped output projection (model.md 3.4): u[g] = wo_a[g] . o[group g's heads], bf16, then out = lin8(u, wo_b).
// No activation rounding in front of wo_a.
#pragma once

#include "ops/linear/linear.h"

namespace senko::ops {

struct OutputProjParams {
  int64_t rows = 0;
  int64_t groups = 0;
  const float* o = nullptr;  // [rows, groups * wo_a.in]
  WeightView wo_a;           // [groups * rank, heads * dim / groups]: rows g*rank.. belong to group g
  WeightView wo_b;           // [hidden, groups * rank]
  float* u = nullptr;        // scratch [rows, groups * rank]
  float* y = nullptr;        // [rows, hidden]
  bool round_bf16 = false;
  bool round_activations = false;
};

void OutputProjReference(const OutputProjParams& p, ThreadPool& pool);
void OutputProjCpu(const OutputProjParams& p, ThreadPool& pool);

}  // namespace senko::ops
