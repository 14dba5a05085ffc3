// The truth: one (row, slot) pair at a time through LinearReference, everything between in double.
#include <cmath>
#include <vector>

#include "numerics/bf16.h"
#include "ops/experts/experts.h"

namespace senko::ops {
namespace {

// min(g, limit) and clamp(u, -limit, limit) that let NaN pass.
double Above(double x, double limit) { return x > limit ? limit : x; }
double Below(double x, double limit) { return x < limit ? limit : x; }

// One expert for one row; weight multiplies before w2.
std::vector<float> RunExpert(const ExpertsParams& p, const ExpertWeights& e, const float* x, float weight,
                             ThreadPool& pool) {
  const int64_t inter = e.w1.out;
  std::vector<float> g(inter), u(inter), h(inter), out(p.hidden);
  LinearParams linear;
  linear.rows = 1;
  linear.x = x;
  linear.x_stride = p.hidden;
  linear.round_bf16 = p.round_bf16;
  linear.y_stride = inter;
  linear.weight = e.w1;
  linear.y = g.data();
  LinearReference(linear, pool);
  linear.weight = e.w3;
  linear.y = u.data();
  LinearReference(linear, pool);
  for (int64_t j = 0; j < inter; ++j) {
    double gate = g[j], up = u[j];
    if (p.swiglu_limit > 0) {
      gate = Above(gate, p.swiglu_limit);
      up = Below(Above(up, p.swiglu_limit), -static_cast<double>(p.swiglu_limit));
    }
    const float value = static_cast<float>(gate / (1.0 + std::exp(-gate)) * up * weight);
    h[j] = p.round_bf16 ? numerics::RoundToBf16(value) : value;
  }
  if (p.round_activations) RoundActivationsReference(h.data(), h.data(), 1, inter, pool);
  linear.x = h.data();
  linear.x_stride = inter;
  linear.weight = e.w2;
  linear.y = out.data();
  linear.y_stride = p.hidden;
  LinearReference(linear, pool);
  return out;
}

}  // namespace

void ExpertsReference(const ExpertsParams& p, ThreadPool& pool) {
  std::vector<std::vector<float>> slots(p.rows * p.topk);
  for (int64_t e = 0; e < p.num_experts; ++e) {
    for (int32_t i = p.dispatch.expert_begin[e]; i < p.dispatch.expert_begin[e + 1]; ++i) {
      const int32_t pair = p.dispatch.pairs[i];
      slots[pair] = RunExpert(p, p.experts[e], p.x + pair / p.topk * p.hidden, p.route_weights[pair], pool);
    }
  }
  for (int64_t r = 0; r < p.rows; ++r) {
    std::vector<float> shared(p.hidden, 0.0f);
    if (p.shared_inter > 0) shared = RunExpert(p, p.shared, p.x + r * p.hidden, 1.0f, pool);
    for (int64_t c = 0; c < p.hidden; ++c) {
      float sum = 0;
      for (int64_t k = 0; k < p.topk; ++k) sum += slots[r * p.topk + k][c];
      if (p.shared_inter > 0) sum += shared[c];
      p.y[r * p.hidden + c] = p.round_bf16 ? numerics::RoundToBf16(sum) : sum;
    }
  }
}

}  // namespace senko::ops
