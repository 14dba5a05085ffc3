// Engram on the device side (model.md 3.7): gather and dequantise table rows; gate and inject into the
// streams.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace senko::ops {

// One layer's table as stored: e4m3 [rows, dim] with ue8m0 [rows, dim / 32], usually a file mapping.
struct EngramTable {
  const uint8_t* values = nullptr;
  const uint8_t* scales = nullptr;
  int64_t rows = 0;
  int64_t dim = 0;
};

struct EngramGatherParams {
  int64_t rows = 0;
  int64_t slots = 0;                 // (max_ngram - 1) * heads table rows per token
  const int64_t* indices = nullptr;  // [rows, slots], already offset; in [0, table.rows)
  EngramTable table;
  float* out = nullptr;  // [rows, slots * dim]; exact in bf16
};
void EngramGatherReference(const EngramGatherParams& p, ThreadPool& pool);
void EngramGatherCpu(const EngramGatherParams& p, ThreadPool& pool);

// Per stream s, dot_s = sum_c(x * (q_weight * k_weight) * key) * rsqrt(mean x^2 + eps) * rsqrt(mean key^2 +
// eps)
// * hidden^-0.5 and x[s] = fma(sigmoid(copysign(sqrt(max(|dot_s|, 1e-6)), dot_s)), value, x[s]), rounded on
// request. Image rows are left as they are.
struct EngramInjectParams {
  int64_t rows = 0;
  int64_t streams = 0;
  int64_t hidden = 0;
  const float* kv = nullptr;        // [rows, (streams + 1) * hidden]: keys by stream, then the value
  const float* q_weight = nullptr;  // [streams, hidden]
  const float* k_weight = nullptr;  // [streams, hidden]
  float rms_eps = 0;
  const uint8_t* is_image = nullptr;  // [rows] or null: gate 0
  bool round_bf16 = false;
  float* x = nullptr;  // [rows, streams, hidden], in place
};
void EngramInjectReference(const EngramInjectParams& p, ThreadPool& pool);
void EngramInjectCpu(const EngramInjectParams& p, ThreadPool& pool);

}  // namespace senko::ops
