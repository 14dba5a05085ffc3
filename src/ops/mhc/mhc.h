// Manifold-constrained hyper-connections with the delayed pre (model.md 3.2). float32 throughout.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "ops/linear/linear.h"

namespace senko::ops {

inline constexpr int64_t kMaxStreams = 8;

// Coefficients of one site. The projection is summed as `linear` sums float32 weights.
struct MhcMixParams {
  int64_t rows = 0;
  int64_t streams = 0;           // hc, 1 .. kMaxStreams
  int64_t hidden = 0;            // D
  const float* x = nullptr;      // [rows, streams, hidden]
  WeightView fn;                 // F32 [(2 + hc) * hc, hc * D], stream-major columns
  const float* base = nullptr;   // [(2 + hc) * hc]
  const float* scale = nullptr;  // [3]: pre, post, comb
  float rms_eps = 0;             // of the one RMS over all hc * D values
  float hc_eps = 0;
  int64_t sinkhorn_iters = 0;  // counting the first, column-only step
  float* mixes = nullptr;      // scratch [rows, (2 + hc) * hc]
  float* pre = nullptr;        // [rows, hc]
  float* post = nullptr;       // [rows, hc]
  float* comb = nullptr;       // [rows, hc, hc]
};
void MhcMixReference(const MhcMixParams& p, ThreadPool& pool);
void MhcMixCpu(const MhcMixParams& p, ThreadPool& pool);

// y = RMSNorm(bf16(sum_j pre[j] * x[j])): one fused multiply-add per stream, in order, from 0.
struct MhcCollapseParams {
  int64_t rows = 0;
  int64_t streams = 0;
  int64_t hidden = 0;
  const float* x = nullptr;            // [rows, streams, hidden]
  const float* pre = nullptr;          // [rows, streams]
  const float* norm_weight = nullptr;  // [hidden]; null: no norm, only the (rounded) collapse
  float rms_eps = 0;
  bool round_bf16 = false;
  float* y = nullptr;  // [rows, hidden]
};
void MhcCollapseReference(const MhcCollapseParams& p, ThreadPool& pool);
void MhcCollapseCpu(const MhcCollapseParams& p, ThreadPool& pool);

// x[k] = bf16(post[k] * y + sum_j comb[j][k] * x[j]), in place; the sum runs over comb's first index in
// order, one fused multiply-add each, from the rounded product post[k] * y.
struct MhcExpandParams {
  int64_t rows = 0;
  int64_t streams = 0;
  int64_t hidden = 0;
  const float* y = nullptr;     // [rows, hidden]
  const float* post = nullptr;  // [rows, streams]
  const float* comb = nullptr;  // [rows, streams, streams]
  bool round_bf16 = false;
  float* x = nullptr;  // [rows, streams, hidden]
};
void MhcExpandReference(const MhcExpandParams& p, ThreadPool& pool);
void MhcExpandCpu(const MhcExpandParams& p, ThreadPool& pool);

}  // namespace senko::ops
