// Engram on Hopper (model.md 3.7): n-gram hashes, rows out of tables in host memory, gate and injection into bf16
// streams.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace senko::ops {

inline constexpr int kMaxNgramSm90 = 8;
inline constexpr int kMaxEngramSlotsSm90 = 64;

// One layer's hash (config/engram_hash.h), by value so that it travels with the launch.
struct EngramHashSm90 {
  int32_t max_ngram = 0;
  int32_t heads = 0;
  uint64_t multipliers[kMaxNgramSm90] = {};
  uint64_t primes[kMaxEngramSlotsSm90] = {};
  int64_t offsets[kMaxEngramSlotsSm90] = {};

  int64_t slots() const { return int64_t{max_ngram - 1} * heads; }
};

// Rows' table rows and what they hold, e4m3 and scales multiplied out: exact in bf16. A row of which something is not
// there (a token before tokens_begin that counts, a table row past the table's end) is our own fault: its slots are
// NaN.
struct EngramGatherSm90Params {
  const int32_t* rows = nullptr;  // device
  int64_t max_rows = 0;
  const int64_t* positions = nullptr;      // device [rows]
  const int32_t* sequences = nullptr;      // device [rows]
  const int32_t* const* tokens = nullptr;  // device [sequences]: ids, device memory; of a row's position and the
                                           // max_ngram - 1 before it
  const int64_t* tokens_begin = nullptr;   // device [sequences]: position of tokens[s][0]
  const int32_t* token_map = nullptr;      // device [vocab]: compressed ids
  int64_t vocab = 0;                       // ids outside count as the pad token: the host has refused them before
  int32_t image_token = -1;
  int32_t pad = 0;  // compressed
  EngramHashSm90 hash;
  const uint8_t* values = nullptr;  // e4m3 [table_rows, dim], 8-byte aligned: mapped host memory or device memory
  const uint8_t* scales = nullptr;  // ue8m0 [table_rows, dim / 32]
  int64_t table_rows = 0;
  int64_t dim = 0;               // a multiple of 32
  __nv_bfloat16* out = nullptr;  // [rows, slots * dim], 16-byte aligned
  int32_t max_blocks = 0;        // blocks of 256 threads at most: it runs beside the main chain
};
void EngramGatherSm90(const EngramGatherSm90Params& p, cudaStream_t stream);

// As EngramInjectParams; of bf16 with rounding points and four streams. A stream's sums have an order of their own:
// eight columns a thread, a butterfly over the warp, the warps in order.
template <typename Value>
struct BasicEngramInjectSm90Params {
  const int32_t* rows = nullptr;  // device
  int64_t max_rows = 0;
  int64_t num_streams = 4;
  int64_t hidden = 0;               // a multiple of 32, at most 5,120
  const Value* kv = nullptr;        // [rows, num_streams + 1, hidden]
  const float* q_weight = nullptr;  // [num_streams, hidden]
  const float* k_weight = nullptr;  // [num_streams, hidden]
  float rms_eps = 0;
  const uint8_t* is_image = nullptr;  // [rows] or null
  Value* streams = nullptr;           // [rows, num_streams, hidden], in place
};
using EngramInjectSm90Params = BasicEngramInjectSm90Params<__nv_bfloat16>;
void EngramInjectSm90(const EngramInjectSm90Params& p, cudaStream_t stream);
void EngramInjectSm90(const BasicEngramInjectSm90Params<float>& p, cudaStream_t stream);

}  // namespace senko::ops
