// Rows brought from where they are to where a pass wants them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace senko::runtime {

// Every stream of a row is its token's embedding; pre = (1, 0, 0, 0).
struct EmbedParams {
  const int32_t* rows = nullptr;  // device
  int64_t max_rows = 0;
  const int32_t* tokens = nullptr;   // [rows], in the vocabulary
  const uint8_t* embed = nullptr;    // bf16 [vocab, hidden]
  int64_t hidden = 0;                // a multiple of 8
  __nv_bfloat16* streams = nullptr;  // [rows, 4, hidden]
  float* pre = nullptr;              // [rows, 4]
};
void EmbedRows(const EmbedParams& p, cudaStream_t stream);

// to[r] = from[source[r]], and four floats beside each row where there are any.
struct GatherRowsParams {
  const int32_t* rows = nullptr;  // device
  int64_t max_rows = 0;
  const int32_t* source = nullptr;  // [rows]
  int64_t row_bytes = 0;            // a multiple of 16
  const void* from = nullptr;
  void* to = nullptr;
  const float* pre = nullptr;  // [.., 4] or null
  float* pre_to = nullptr;
};
void GatherRows(const GatherRowsParams& p, cudaStream_t stream);

}  // namespace senko::runtime
