// The truth for hyper-connections. Coefficients in float64; the stream sums in the contract's float32 order.
#include <cmath>
#include <vector>

#include "base/check.h"
#include "numerics/bf16.h"
#include "ops/mhc/mhc.h"
#include "ops/norm/rms_row.h"

namespace senko::ops {
namespace {

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// c[j][k], hc x hc: softmax over k, then alternating column and row divisions, starting with columns.
void Sinkhorn(std::vector<double>& c, int64_t hc, double eps, int64_t iters) {
  const auto at = [&](int64_t j, int64_t k) -> double& { return c[static_cast<size_t>(j * hc + k)]; };
  for (int64_t j = 0; j < hc; ++j) {
    double top = at(j, 0), sum = 0;
    for (int64_t k = 1; k < hc; ++k) top = std::max(top, at(j, k));
    for (int64_t k = 0; k < hc; ++k) sum += at(j, k) = std::exp(at(j, k) - top);
    for (int64_t k = 0; k < hc; ++k) at(j, k) = at(j, k) / sum + eps;
  }
  for (int64_t iter = 0; iter < iters; ++iter) {
    for (int64_t j = 0; j < hc && iter > 0; ++j) {
      double sum = eps;
      for (int64_t k = 0; k < hc; ++k) sum += at(j, k);
      for (int64_t k = 0; k < hc; ++k) at(j, k) /= sum;
    }
    for (int64_t k = 0; k < hc; ++k) {
      double sum = eps;
      for (int64_t j = 0; j < hc; ++j) sum += at(j, k);
      for (int64_t j = 0; j < hc; ++j) at(j, k) /= sum;
    }
  }
}

float Round(float x, bool round_bf16) { return round_bf16 ? numerics::RoundToBf16(x) : x; }

}  // namespace

void MhcMixReference(const MhcMixParams& p, ThreadPool& pool) {
  const int64_t hc = p.streams, outputs = (2 + hc) * hc, width = hc * p.hidden;
  SENKO_CHECK(hc >= 1 && p.sinkhorn_iters >= 1 && p.fn.out == outputs && p.fn.in == width);
  LinearReference({p.rows, p.x, width, p.fn, p.mixes, outputs, /*round_bf16=*/false}, pool);
  for (int64_t row = 0; row < p.rows; ++row) {
    double squares = 0;
    for (int64_t c = 0; c < width; ++c) squares += double{p.x[row * width + c]} * double{p.x[row * width + c]};
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(width) + double{p.rms_eps});
    const auto mix = [&](int64_t i, int group) {
      return double{p.mixes[row * outputs + i]} * scale * double{p.scale[group]} + double{p.base[i]};
    };
    std::vector<double> comb;
    for (int64_t i = 0; i < hc * hc; ++i) comb.push_back(mix(2 * hc + i, 2));
    Sinkhorn(comb, hc, p.hc_eps, p.sinkhorn_iters);
    for (int64_t j = 0; j < hc; ++j) {
      p.pre[row * hc + j] = static_cast<float>(Sigmoid(mix(j, 0)) + double{p.hc_eps});
      p.post[row * hc + j] = static_cast<float>(2.0 * Sigmoid(mix(hc + j, 1)));
    }
    for (int64_t i = 0; i < hc * hc; ++i) p.comb[row * hc * hc + i] = static_cast<float>(comb[static_cast<size_t>(i)]);
  }
}

void MhcCollapseReference(const MhcCollapseParams& p, ThreadPool&) {
  for (int64_t row = 0; row < p.rows; ++row) {
    const float* x = p.x + row * p.streams * p.hidden;
    float* y = p.y + row * p.hidden;
    for (int64_t c = 0; c < p.hidden; ++c) {
      float sum = 0;
      for (int64_t j = 0; j < p.streams; ++j) sum = std::fma(p.pre[row * p.streams + j], x[j * p.hidden + c], sum);
      y[c] = Round(sum, p.round_bf16);
    }
    if (p.norm_weight != nullptr) RmsNormRowReference(y, p.norm_weight, p.hidden, p.rms_eps, p.round_bf16, y);
  }
}

void MhcExpandReference(const MhcExpandParams& p, ThreadPool&) {
  const int64_t hc = p.streams;
  std::vector<float> column(static_cast<size_t>(hc));
  for (int64_t row = 0; row < p.rows; ++row) {
    float* x = p.x + row * hc * p.hidden;
    for (int64_t c = 0; c < p.hidden; ++c) {
      for (int64_t k = 0; k < hc; ++k) {
        float sum = p.post[row * hc + k] * p.y[row * p.hidden + c];
        for (int64_t j = 0; j < hc; ++j) sum = std::fma(p.comb[(row * hc + j) * hc + k], x[j * p.hidden + c], sum);
        column[static_cast<size_t>(k)] = Round(sum, p.round_bf16);
      }
      for (int64_t k = 0; k < hc; ++k) x[k * p.hidden + c] = column[static_cast<size_t>(k)];
    }
  }
}

}  // namespace senko::ops
