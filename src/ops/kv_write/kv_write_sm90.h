// Everything that writes KV, on Hopper (kv_write.h is what it computes: of bf16 rows with the model's rounding points,
// of float rows without any). Packed rows are the CPU's bits where the norm's sum of squares rounds alike. Every
// pointer to rows or weights is 16-byte aligned.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/kv_write/kv_write.h"
#include "ops/rows.h"

namespace senko::ops {

// One launch behind the projection of both latents: the query's is normed and rounded as activations, the window's is
// normed, rotated, quantised and staged.
template <typename Value>
struct BasicLatentNormsSm90Params {
  const int32_t* rows = nullptr;  // device
  int64_t max_rows = 0;
  const Value* latents = nullptr;   // [rows, q_dim + dim]: the query's, then the window's
  int64_t q_dim = 0;                // a multiple of 32; 0: window rows only
  const float* q_weight = nullptr;  // [q_dim]
  Value* q = nullptr;               // [rows, q_dim] activation-rounded; null: window rows only
  int64_t dim = 0;                  // 0: query latents only. Multiples of 32
  int64_t rope_dim = 0;
  const float* kv_weight = nullptr;  // [dim]
  float rms_eps = 0;
  const float* rope = nullptr;  // [rows, rope_dim / 2, 2]
  int64_t row_stride = 0;       // bytes
  uint8_t* staging = nullptr;   // [rows] packed window rows
};
using LatentNormsSm90Params = BasicLatentNormsSm90Params<__nv_bfloat16>;
void LatentNormsSm90(const LatentNormsSm90Params& p, cudaStream_t stream);
void LatentNormsSm90(const BasicLatentNormsSm90Params<float>& p, cudaStream_t stream);

// Staged rows into the rings of several layers at once: of more rows than a ring holds, the last ring_rows.
struct WindowCommitSm90Params {
  const int32_t* num_sequences = nullptr;  // device
  int64_t max_sequences = 0;
  const SequenceKv* sequences = nullptr;  // device; slot pointers are device memory
  const int32_t* row_counts = nullptr;    // device [num_sequences]
  int64_t ring_offset = 0;                // of the first layer, bytes from the slot's start
  int64_t ring_stride = 0;                // bytes to the next layer's ring
  int64_t ring_rows = 0;
  int64_t row_stride = 0;            // bytes, a multiple of 16
  const uint8_t* staging = nullptr;  // of the first layer
  int64_t staging_stride = 0;        // bytes to the next layer's staging
  int64_t num_layers = 0;
};
void WindowCommitSm90(const WindowCommitSm90Params& p, cudaStream_t stream);

// Latents of the entries that a step completes, and what the slots keep of pairs whose second token has not come.
template <typename Value>
struct BasicCompressSm90Params {
  const int32_t* count = nullptr;  // device
  int64_t max_count = 0;
  const LatentRef* latents = nullptr;  // device [count]
  int ratio = 1;
  int64_t dim = 0;
  // Ratio 1: bf16 [rows, dim], wkv's output. Ratio 2: float32 [rows, 2 * dim], wkv's output and then wgate's.
  const Value* c = nullptr;
  const float* cz = nullptr;
  const SequenceKv* sequences = nullptr;  // device
  int64_t pending_offset = 0;
  int64_t pending_rows = 1;
  const float* norm_weight = nullptr;
  float rms_eps = 0;
  Value* out = nullptr;  // [count, dim], before RoPE
};
using CompressSm90Params = BasicCompressSm90Params<__nv_bfloat16>;
void CompressSm90(const CompressSm90Params& p, cudaStream_t stream);
void CompressSm90(const BasicCompressSm90Params<float>& p, cudaStream_t stream);

// Ratio 2, after CompressSm90 has read: (c, z) of the last first-of-a-pair rows of every sequence into its slot, as
// model/attention_layer.cc's StorePending does.
struct PendingStoreSm90Params {
  const int32_t* num_sequences = nullptr;  // device
  int64_t max_sequences = 0;
  const SequenceKv* sequences = nullptr;  // device
  const int32_t* row_counts = nullptr;    // device
  const int64_t* positions = nullptr;     // device [rows]
  int64_t dim = 0;
  const float* cz = nullptr;  // [rows, 2 * dim]
  int64_t pending_offset = 0;
  int64_t pending_rows = 1;
};
void PendingStoreSm90(const PendingStoreSm90Params& p, cudaStream_t stream);

// Entries and index keys of the latents, one launch: entry = qdq_fp4_16(rope(latent)), key =
// qdq_fp4_32(rope(RMSNorm(k))).
template <typename Value>
struct BasicEntryWriteSm90Params {
  const int32_t* count = nullptr;  // device
  int64_t max_count = 0;
  const LatentRef* latents = nullptr;  // device [count]
  int64_t dim = 0;
  int64_t index_dim = 0;
  int64_t rope_dim = 0;
  const Value* latent = nullptr;  // [count, dim]
  const Value* k = nullptr;       // [count, index_dim], wk's output
  const float* k_norm = nullptr;  // [index_dim]
  float rms_eps = 0;
  const float* rope = nullptr;            // [count, rope_dim / 2, 2] at the groups' first positions
  const SequenceKv* sequences = nullptr;  // device
  EntryView entries;
};
using EntryWriteSm90Params = BasicEntryWriteSm90Params<__nv_bfloat16>;
void EntryWriteSm90(const EntryWriteSm90Params& p, cudaStream_t stream);
void EntryWriteSm90(const BasicEntryWriteSm90Params<float>& p, cudaStream_t stream);

}  // namespace senko::ops
