// Routing on Hopper: the gate's scores, the top experts of every row, and the lists by which the experts' kernels find
// their rows.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "ops/linear/linear_sm90.h"

namespace senko::ops {

inline constexpr int64_t kMaxExpertsSm90 = 1024;
inline constexpr int64_t kMaxTopkSm90 = 8;
inline constexpr int64_t kFewRoutedRows = 64;

template <typename Value>
struct BasicRouterSm90Params {
  const int32_t* rows = nullptr;  // device
  int64_t max_rows = 0;
  int64_t num_experts = 0;            // at most kMaxExpertsSm90
  int64_t topk = 0;                   // at most kMaxTopkSm90
  const Value* x = nullptr;           // [rows, hidden]
  TiledWeight gate;                   // kBf16 [num_experts, hidden]
  const float* bias = nullptr;        // [num_experts], text rows
  const float* bias_vl = nullptr;     // [num_experts], image rows
  const uint8_t* is_image = nullptr;  // [rows] or null
  float temperature = 1;
  float scaling = 1;
  bool normalise = true;
  float* scores = nullptr;   // RouterScratchFloats(num_experts, hidden, max_rows)
  int32_t* ids = nullptr;    // [rows, topk] by descending score + bias (NaN last), ties to the lower id
  float* weights = nullptr;  // [rows, topk]
};
using RouterSm90Params = BasicRouterSm90Params<__nv_bfloat16>;
// The scores' scratch; not less for more rows.
size_t RouterScratchFloats(int64_t num_experts, int64_t hidden, int64_t max_rows);
// Any number of rows.
void RouterSm90(const RouterSm90Params& p, cudaStream_t stream);
void RouterSm90(const BasicRouterSm90Params<float>& p, cudaStream_t stream);

// Up to `block` (row, slot) pairs of one expert: pairs[first .. first + count).
struct ExpertItem {
  int32_t expert;
  int32_t first;
  int32_t count;
};
// No more items than this, however the rows choose.
inline constexpr int64_t MaxExpertItems(int64_t rows, int64_t topk, int64_t num_experts, int64_t block) {
  const int64_t pairs = rows * topk;
  return (pairs + block - 1) / block + (pairs < num_experts ? pairs : num_experts);
}

struct DispatchSm90Params {
  const int32_t* rows = nullptr;  // device
  int64_t num_experts = 0;
  int64_t topk = 0;
  int64_t block = 0;             // pairs of an item at most
  const int32_t* ids = nullptr;  // [rows, topk]
  int32_t* counts = nullptr;     // scratch [num_experts]
  int32_t* pairs = nullptr;      // [rows * topk]: row * topk + slot, by expert, ascending within one
  ExpertItem* items = nullptr;   // [MaxExpertItems(max_rows, ...)]
  int32_t* num_items = nullptr;  // [1]
};
// Any number of rows.
void DispatchSm90(const DispatchSm90Params& p, cudaStream_t stream);

// Both, the same bits: in two launches up to kFewRoutedRows, else one after the other. They share rows, num_experts,
// topk and ids.
void RouteSm90(const RouterSm90Params& r, const DispatchSm90Params& d, cudaStream_t stream);
void RouteSm90(const BasicRouterSm90Params<float>& r, const DispatchSm90Params& d, cudaStream_t stream);
void RouteFewSm90(const RouterSm90Params& r, const DispatchSm90Params& d, cudaStream_t stream);

}  // namespace senko::ops
