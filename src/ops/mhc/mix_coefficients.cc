#include "ops/mhc/mix_coefficients.h"

#include <algorithm>
#include <cmath>

namespace senko::ops {
namespace {

float Sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// kHc known at compile time lets a row of the matrix be one vector; kHc = 0 takes the run-time count.
template <int64_t kHc>
void Sinkhorn(float* c, int64_t streams, float eps, int64_t iters) {
  const int64_t hc = kHc > 0 ? kHc : streams;
  for (int64_t j = 0; j < hc; ++j) {
    float* row = c + j * hc;
    const float top = *std::max_element(row, row + hc);
    float sum = 0;
    for (int64_t k = 0; k < hc; ++k) {
      row[k] = std::exp(row[k] - top);
      sum += row[k];
    }
    for (int64_t k = 0; k < hc; ++k) row[k] = row[k] / sum + eps;
  }
  for (int64_t iter = 0; iter < iters; ++iter) {
    if (iter > 0) {
      for (int64_t j = 0; j < hc; ++j) {
        float sum = 0;
        for (int64_t k = 0; k < hc; ++k) sum += c[j * hc + k];
        sum += eps;
        for (int64_t k = 0; k < hc; ++k) c[j * hc + k] /= sum;
      }
    }
    float sums[kMaxStreams] = {};
    for (int64_t j = 0; j < hc; ++j) {
      for (int64_t k = 0; k < hc; ++k) sums[k] += c[j * hc + k];
    }
    for (int64_t k = 0; k < hc; ++k) sums[k] += eps;
    for (int64_t j = 0; j < hc; ++j) {
      for (int64_t k = 0; k < hc; ++k) c[j * hc + k] /= sums[k];
    }
  }
}

}  // namespace

void MixCoefficients(const MhcMixParams& p, int64_t row, float sum_of_squares) {
  const int64_t hc = p.streams;
  const float* m = p.mixes + row * (2 + hc) * hc;
  const float rms = 1.0f / std::sqrt(sum_of_squares / static_cast<float>(hc * p.hidden) + p.rms_eps);
  for (int64_t j = 0; j < hc; ++j) {
    p.pre[row * hc + j] = Sigmoid(m[j] * rms * p.scale[0] + p.base[j]) + p.hc_eps;
    p.post[row * hc + j] = 2.0f * Sigmoid(m[hc + j] * rms * p.scale[1] + p.base[hc + j]);
  }
  float* comb = p.comb + row * hc * hc;
  for (int64_t i = 0; i < hc * hc; ++i) comb[i] = m[2 * hc + i] * rms * p.scale[2] + p.base[2 * hc + i];
  if (hc == 4) {
    Sinkhorn<4>(comb, hc, p.hc_eps, p.sinkhorn_iters);
  } else {
    Sinkhorn<0>(comb, hc, p.hc_eps, p.sinkhorn_iters);
  }
}

}  // namespace senko::ops
