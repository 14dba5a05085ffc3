// Everything that writes KV: RMSNorm + RoPE + quantise + scatter (model.md 3.4 to 3.6).
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "ops/rows.h"

namespace senko::ops {

// Window rows: rope(RMSNorm(kv)), quantised by qdq_fp8_32 into staging row r.
struct WindowWriteParams {
  int64_t rows = 0;
  int64_t dim = 0;
  int64_t rope_dim = 0;
  const float* kv = nullptr;           // [rows, dim], wkv's output
  const float* norm_weight = nullptr;  // [dim]
  float rms_eps = 0;
  const float* rope = nullptr;  // [rows, rope_dim / 2, 2]
  bool round_bf16 = false;
  int64_t row_stride = 0;      // bytes
  uint8_t* staging = nullptr;  // [rows] packed rows
};
void WindowWriteReference(const WindowWriteParams& p, ThreadPool& pool);
void WindowWriteCpu(const WindowWriteParams& p, ThreadPool& pool);

// After attention has read them: copies each sequence's staged rows into its ring; of more rows than the ring
// holds, the last ring_rows.
struct WindowCommitParams {
  const SequenceKv* sequences = nullptr;
  const int64_t* row_counts = nullptr;  // [num_sequences] staged rows of each
  int64_t num_sequences = 0;
  WindowView window;
};
void WindowCommit(const WindowCommitParams& p);

// A compressed entry finished in this step.
struct LatentRef {
  int32_t sequence = 0;
  int64_t entry = 0;     // index j; stands for tokens [ratio * j, ratio * (j + 1))
  int64_t row = 0;       // step row of the group's last token
  int64_t row_prev = 0;  // ratio 2: step row of its first token, or -1: it is pending in the slot
};

// Ratio 1: latent = RMSNorm(c[row]). Ratio 2: softmax over the two tokens' z per channel weighs their c, the
// sum is rounded to bf16, then RMSNorm (one rounding).
struct CompressParams {
  int64_t count = 0;
  const LatentRef* latents = nullptr;  // [count]
  int ratio = 1;
  int64_t dim = 0;
  const float* c = nullptr;  // [rows, dim]
  const float* z = nullptr;  // [rows, dim]; ratio 2 only
  const SequenceKv* sequences = nullptr;
  int64_t pending_offset = 0;          // bytes in the slot: float32 [pending_rows, 2, dim], c then z
  int64_t pending_rows = 1;            // entry j's first token lies at j mod pending_rows
  const float* norm_weight = nullptr;  // [dim]
  float rms_eps = 0;
  bool round_bf16 = false;
  float* out = nullptr;  // [count, dim], before RoPE
};
void CompressReference(const CompressParams& p, ThreadPool& pool);
void CompressCpu(const CompressParams& p, ThreadPool& pool);

// Entries: qdq_fp4_16(rope(latent, ratio * entry)) into the pages.
struct EntryWriteParams {
  int64_t count = 0;
  const LatentRef* latents = nullptr;
  int64_t dim = 0;
  int64_t rope_dim = 0;
  const float* latent = nullptr;  // [count, dim]
  const float* rope = nullptr;    // [count, rope_dim / 2, 2] at the groups' first positions
  bool round_bf16 = false;
  const SequenceKv* sequences = nullptr;
  EntryView entries;
};
void EntryWriteReference(const EntryWriteParams& p, ThreadPool& pool);
void EntryWriteCpu(const EntryWriteParams& p, ThreadPool& pool);

// Index keys: qdq_fp4_32(rope(RMSNorm(k), ratio * entry)), values and scales in their own sections.
struct KeyWriteParams {
  int64_t count = 0;
  const LatentRef* latents = nullptr;
  int64_t dim = 0;           // index_dim
  int64_t rope_dim = 0;      // rotated tail
  const float* k = nullptr;  // [count, dim], wk's output
  const float* norm_weight = nullptr;
  float rms_eps = 0;
  const float* rope = nullptr;  // [count, rope_dim / 2, 2]
  bool round_bf16 = false;
  const SequenceKv* sequences = nullptr;
  EntryView entries;
};
void KeyWriteReference(const KeyWriteParams& p, ThreadPool& pool);
void KeyWriteCpu(const KeyWriteParams& p, ThreadPool& pool);

}  // namespace senko::ops
