// Hyper-connections on Hopper. Streams and activations are bf16, coefficients float32; four streams. Of float streams
// and activations (--numerics float) nothing is rounded: x is xq, and there may be fewer streams.
//
// The seam between two sublayers is one launch on the critical path (MhcSeamSm90). The coefficients of the next seam
// (MhcMixSm90) depend on its streams only, and are not needed before the sublayer between them has ended.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "ops/linear/linear_sm90.h"

namespace senko::ops {

inline constexpr int64_t kMhcStreams = 4;
inline constexpr int64_t kMhcOutputs = (2 + kMhcStreams) * kMhcStreams;
inline constexpr int64_t kMhcMostSlots = 9;

// streams = expand(y, post, comb, streams); x = RMSNorm(collapse(pre, streams)); xq = x rounded as activations.
// Expand and collapse are the CPU's bits (mhc.h); the norm is that of ops/norm/norm_lanes_sm90.cuh.
// Where y has slots (experts_sm90.h), it is their sum: in float32 from the first on, in their order, rounded to bf16
// once (model.md 11.8).
template <typename Value>
struct BasicMhcSeamSm90Params {
  const int32_t* rows = nullptr;  // device
  int64_t max_rows = 0;
  int64_t num_streams = kMhcStreams;   // of float: at most so many
  int64_t hidden = 0;                  // a multiple of 32, at most 5,120
  const Value* y = nullptr;            // [rows, y_slots, hidden], of the sublayer before; null: the streams are ready
  int64_t y_slots = 1;                 // at most kMhcMostSlots
  const float* post = nullptr;         // [rows, 4], 16-byte aligned, with y
  const float* comb = nullptr;         // [rows, 4, 4], 16-byte aligned, with y
  Value* streams = nullptr;            // [rows, 4, hidden], in place
  const float* pre = nullptr;          // [rows, 4], 16-byte aligned
  const float* norm_weight = nullptr;  // [hidden], 16-byte aligned; nobody writes it
  float rms_eps = 0;
  Value* x = nullptr;   // [rows, hidden]
  Value* xq = nullptr;  // [rows, hidden]; null: not wanted
};
using MhcSeamSm90Params = BasicMhcSeamSm90Params<__nv_bfloat16>;
void MhcSeamSm90(const MhcSeamSm90Params& p, cudaStream_t stream);
void MhcSeamSm90(const BasicMhcSeamSm90Params<float>& p, cudaStream_t stream);

// fn's float32 rows [outputs, width] as three bf16 rows each, whose sum is the row exactly: [3 * outputs, width]. With
// streams of bf16 every product is exact, so the projection is a float32 one on the tensor cores. Values below 2^-110
// lose bits, which no sum notices.
void MhcSplitProjection(const float* fn, int64_t outputs, int64_t width, __nv_bfloat16* split, cudaStream_t stream);

template <typename Value>
struct BasicMhcMixSm90Params {
  const int32_t* rows = nullptr;  // device
  int64_t max_rows = 0;
  int64_t num_streams = kMhcStreams;  // of float: at most so many
  int64_t hidden = 0;                 // at most 5,120
  const Value* streams = nullptr;     // [rows, 4, hidden]
  TiledWeight fn;                     // kBf16 [72, 4 * hidden] of MhcSplitProjection
  const float* base = nullptr;        // [24]
  const float* scale = nullptr;       // [3]
  float rms_eps = 0;
  float hc_eps = 0;
  int sinkhorn_iters = 0;
  float* scratch = nullptr;  // MhcMixScratchFloats(hidden, max_rows)
  float* pre = nullptr;      // [rows, 4]
  float* post = nullptr;     // [rows, 4]
  float* comb = nullptr;     // [rows, 4, 4]
};
using MhcMixSm90Params = BasicMhcMixSm90Params<__nv_bfloat16>;
size_t MhcMixScratchFloats(int64_t hidden, int64_t max_rows);
void MhcMixSm90(const MhcMixSm90Params& p, cudaStream_t stream);
void MhcMixSm90(const BasicMhcMixSm90Params<float>& p, cudaStream_t stream);

}  // namespace senko::ops
