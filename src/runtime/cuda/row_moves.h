// Rows brought from where they are to where a pass wants them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace senko::runtime {

// Every stream of a row is its token's embedding; pre = (1, 0, .., 0).
template <typename Value>
struct BasicEmbedParams {
  const int32_t* rows = nullptr;  // device
  int64_t max_rows = 0;
  const int32_t* tokens = nullptr;  // [rows], in the vocabulary
  const uint8_t* embed = nullptr;   // bf16 [vocab, hidden]
  int64_t num_streams = 0;
  int64_t hidden = 0;        // a multiple of 8
  Value* streams = nullptr;  // [rows, num_streams, hidden]
  float* pre = nullptr;      // [rows, num_streams]
};
void EmbedRows(const BasicEmbedParams<__nv_bfloat16>& p, cudaStream_t stream);
void EmbedRows(const BasicEmbedParams<float>& p, cudaStream_t stream);

// to[r] = from[source[r]], and a few floats beside each row where there are any.
struct GatherRowsParams {
  const int32_t* rows = nullptr;  // device
  int64_t max_rows = 0;
  const int32_t* source = nullptr;  // [rows]
  int64_t row_bytes = 0;            // a multiple of 16
  const void* from = nullptr;
  void* to = nullptr;
  int64_t pre_width = 0;
  const float* pre = nullptr;  // [.., pre_width] or null
  float* pre_to = nullptr;
};
void GatherRows(const GatherRowsParams& p, cudaStream_t stream);

}  // namespace senko::runtime
