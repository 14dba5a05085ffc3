// The truth for gathering and injecting Engram rows: sums in float64, the stream update in the contract's
// float32.
#include <cmath>

#include "base/check.h"
#include "numerics/bf16.h"
#include "numerics/quantise.h"
#include "ops/engram/engram.h"

namespace senko::ops {

void EngramGatherReference(const EngramGatherParams& p, ThreadPool&) {
  const int64_t dim = p.table.dim, blocks = dim / numerics::kFp8Block;
  SENKO_CHECK(dim % numerics::kFp8Block == 0);
  for (int64_t i = 0; i < p.rows * p.slots; ++i) {
    const int64_t index = p.indices[i];
    SENKO_CHECK(index >= 0 && index < p.table.rows);
    for (int64_t b = 0; b < blocks; ++b) {
      numerics::DequantiseFp8(p.table.values + index * dim + b * numerics::kFp8Block,
                              p.table.scales[index * blocks + b], p.out + i * dim + b * numerics::kFp8Block);
    }
  }
}

void EngramInjectReference(const EngramInjectParams& p, ThreadPool&) {
  const int64_t d = p.hidden;
  for (int64_t row = 0; row < p.rows; ++row) {
    if (p.is_image != nullptr && p.is_image[row] != 0) continue;
    const float* kv = p.kv + row * (p.streams + 1) * d;
    const float* value = kv + p.streams * d;
    for (int64_t s = 0; s < p.streams; ++s) {
      float* x = p.x + (row * p.streams + s) * d;
      const float* key = kv + s * d;
      double product = 0, x_squares = 0, key_squares = 0;
      for (int64_t c = 0; c < d; ++c) {
        const float weight = p.q_weight[s * d + c] * p.k_weight[s * d + c];  // a float32 product by decision
        product += double{x[c]} * double{weight} * double{key[c]};
        x_squares += double{x[c]} * double{x[c]};
        key_squares += double{key[c]} * double{key[c]};
      }
      const double n = static_cast<double>(d), eps = p.rms_eps;
      const double dot = product / (std::sqrt(x_squares / n + eps) * std::sqrt(key_squares / n + eps) * std::sqrt(n));
      const double gate = 1.0 / (1.0 + std::exp(-std::copysign(std::sqrt(std::max(std::abs(dot), 1e-6)), dot)));
      for (int64_t c = 0; c < d; ++c) {
        const float sum = std::fma(static_cast<float>(gate), value[c], x[c]);
        x[c] = p.round_bf16 ? numerics::RoundToBf16(sum) : sum;
      }
    }
  }
}

}  // namespace senko::ops
