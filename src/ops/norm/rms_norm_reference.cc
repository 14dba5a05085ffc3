#include <cmath>

#include "numerics/bf16.h"
#include "ops/norm/norm.h"
#include "ops/norm/rms_row.h"

namespace senko::ops {

void RmsNormRowReference(const float* x, const float* weight, int64_t cols, float eps, bool round_bf16, float* y) {
  double sum = 0;
  for (int64_t c = 0; c < cols; ++c) sum += double{x[c]} * double{x[c]};
  const double scale = 1.0 / std::sqrt(sum / static_cast<double>(cols) + double{eps});
  for (int64_t c = 0; c < cols; ++c) {
    const float value = static_cast<float>(double{weight[c]} * (double{x[c]} * scale));
    y[c] = round_bf16 ? numerics::RoundToBf16(value) : value;
  }
}

void RmsNormReference(const RmsNormParams& p, ThreadPool&) {
  for (int64_t r = 0; r < p.rows; ++r) {
    RmsNormRowReference(p.x + r * p.cols, p.weight, p.cols, p.eps, p.round_bf16, p.y + r * p.cols);
  }
}

}  // namespace senko::ops
