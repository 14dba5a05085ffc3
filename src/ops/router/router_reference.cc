// The truth: scores in float64, selection by a full sort.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "ops/router/router.h"

namespace senko::ops {
namespace {

// sqrt(softplus(z)), softplus being the identity above 20.
double Score(double z) { return std::sqrt(z > 20.0 ? z : std::log1p(std::exp(z))); }

}  // namespace

void RouterReference(const RouterParams& p, ThreadPool& pool) {
  SENKO_CHECK(p.topk >= 1 && p.topk <= p.num_experts && p.gate.out == p.num_experts);
  LinearReference({p.rows, p.x, p.gate.in, p.gate, p.scores, p.num_experts, /*round_bf16=*/false}, pool);
  std::vector<int32_t> order(static_cast<size_t>(p.num_experts));
  std::vector<double> biased(order.size());
  for (int64_t row = 0; row < p.rows; ++row) {
    float* scores = p.scores + row * p.num_experts;
    const float* bias = p.is_image != nullptr && p.is_image[row] != 0 ? p.bias_vl : p.bias;
    for (int64_t e = 0; e < p.num_experts; ++e) {
      scores[e] = static_cast<float>(Score(double{scores[e]} / double{p.temperature}));
      const double value = double{scores[e]} + double{bias[e]};
      biased[static_cast<size_t>(e)] = std::isnan(value) ? -HUGE_VAL : value;
    }
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return biased[static_cast<size_t>(a)] > biased[static_cast<size_t>(b)];
    });
    double sum = 1e-20;
    for (int64_t k = 0; k < p.topk; ++k) sum += double{scores[order[static_cast<size_t>(k)]]};
    for (int64_t k = 0; k < p.topk; ++k) {
      const int32_t id = order[static_cast<size_t>(k)];
      const double weight = double{scores[id]} / (p.normalise && p.topk > 1 ? sum : 1.0);
      p.ids[row * p.topk + k] = id;
      p.weights[row * p.topk + k] = static_cast<float>(weight * double{p.scaling});
    }
  }
}

}  // namespace senko::ops
