// The truth: one query head at a time, every sum and exponential in float64.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "numerics/bf16.h"
#include "numerics/quantise.h"
#include "ops/attention/attention.h"
#include "ops/attention/key_rows.h"
#include "ops/norm/rope_reference.h"

namespace senko::ops {
namespace {

// The row's keys as floats, [num_window + num_selected, dim].
std::vector<float> ExpandKeys(const AttentionParams& p, const KeyRows& keys) {
  std::vector<float> expanded(static_cast<size_t>((keys.num_window + keys.num_selected) * p.dim));
  float* out = expanded.data();
  for (int64_t k = 0; k < keys.num_window; ++k, out += p.dim) {
    const uint8_t* codes = WindowRow(p.window, *keys.sequence, keys.window_begin + k);
    for (int64_t at = 0; at < p.dim; at += numerics::kFp8Block) {
      numerics::DequantiseFp8(codes + at, codes[p.dim + at / numerics::kFp8Block], out + at);
    }
  }
  for (int64_t k = 0; k < keys.num_selected; ++k, out += p.dim) {
    const uint8_t* packed = p.entries.Entry(*keys.sequence, keys.selected[k]);
    for (int64_t at = 0; at < p.dim; at += numerics::kFp4Block16) {
      numerics::DequantiseFp4Block16(packed + at / 2, packed[p.dim / 2 + at / numerics::kFp4Block16], out + at);
    }
  }
  return expanded;
}

void AttendHead(const AttentionParams& p, const float* q, const float* keys, int64_t num_keys, float sink, float* out) {
  std::vector<double> score(static_cast<size_t>(num_keys));
  double top = -std::numeric_limits<double>::infinity();
  for (int64_t k = 0; k < num_keys; ++k) {
    double dot = 0;
    for (int64_t d = 0; d < p.dim; ++d) dot += double{q[d]} * double{keys[k * p.dim + d]};
    score[static_cast<size_t>(k)] = dot * double{p.scale};
    top = std::max(top, score[static_cast<size_t>(k)]);  // a NaN score survives in its exponential
  }
  double denominator = std::exp(double{sink} - top);
  std::vector<double> sum(static_cast<size_t>(p.dim), 0.0);
  for (int64_t k = 0; k < num_keys; ++k) {
    const double weight = std::exp(score[static_cast<size_t>(k)] - top);
    denominator += weight;
    const double rounded = p.round_bf16 ? numerics::RoundToBf16(static_cast<float>(weight)) : weight;
    for (int64_t d = 0; d < p.dim; ++d) sum[static_cast<size_t>(d)] += rounded * double{keys[k * p.dim + d]};
  }
  for (int64_t d = 0; d < p.dim; ++d) {
    const float value = static_cast<float>(sum[static_cast<size_t>(d)] / denominator);
    out[d] = p.round_bf16 ? numerics::RoundToBf16(value) : value;
  }
}

}  // namespace

void AttentionReference(const AttentionParams& p, ThreadPool&) {
  const int64_t tail = p.dim - p.rope_dim;
  std::vector<float> q(static_cast<size_t>(p.dim));
  for (int64_t row = 0; row < p.rows.num_rows; ++row) {
    const KeyRows rows = FindKeyRows(p, row);
    const std::vector<float> keys = ExpandKeys(p, rows);
    const float* table = p.rope + row * p.rope_dim;
    for (int64_t h = 0; h < p.heads; ++h) {
      const int64_t at = (row * p.heads + h) * p.dim;
      std::copy_n(p.q + at, p.dim, q.data());
      RopeRotateReference(q.data() + tail, table, p.rope_dim / 2, /*inverse=*/false, p.round_bf16);
      AttendHead(p, q.data(), keys.data(), rows.num_window + rows.num_selected, p.sink[h], p.out + at);
      RopeRotateReference(p.out + at + tail, table, p.rope_dim / 2, /*inverse=*/true, p.round_bf16);
    }
  }
}

}  // namespace senko::ops
