// Routing per row: the gate GEMM, scores in SIMD, one scan that keeps the best experts sorted.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/router/router_cpu.cc"
#include <hwy/foreach_target.h>
// after foreach_target.h, as Highway wants it
#include <algorithm>

#include "base/check.h"
#include "numerics/simd/math-inl.h"
#include "ops/router/router.h"
#include "ops/select/order_key.h"

HWY_BEFORE_NAMESPACE();
namespace senko::ops::HWY_NAMESPACE {
namespace {

namespace v = numerics::HWY_NAMESPACE;
namespace hn = hwy::HWY_NAMESPACE;

// log(1 + t) for t in [0, 1]: 2 artanh(w) with w = t / (2 + t) <= 1/3. The series stops where terms fall
// below 2^-29 of the first; small t keep their relative precision.
HWY_INLINE v::F32x16 Log1p(v::F32x16 t) {
  const v::F32x16 w = v::Div(t, v::Add(t, v::Set16(2.0f)));
  const v::F32x16 w2 = v::Mul(w, w);
  v::F32x16 p = v::Set16(1.0f / 17.0f);
  for (const float odd : {15.0f, 13.0f, 11.0f, 9.0f, 7.0f, 5.0f, 3.0f}) p = v::MulAdd(p, w2, v::Set16(1.0f / odd));
  p = v::Mul(p, w2);
  const v::F32x16 twice = v::Add(w, w);
  return v::MulAdd(p, twice, twice);
}

// sqrt(max(z, 0) + log1p(e^-|z|)); above 20 the second term no longer changes the sum.
HWY_INLINE v::F32x16 Score(v::F32x16 z) {
  const v::NativeF32 d;
  v::F32x16 minus_abs, positive;
  for (size_t i = 0; i < v::kParts; ++i) {
    minus_abs.part[i] = hn::Neg(hn::Abs(z.part[i]));
    positive.part[i] = hn::IfThenElse(hn::Gt(z.part[i], hn::Zero(d)), z.part[i], hn::Zero(d));
  }
  v::F32x16 soft = v::Add(positive, Log1p(v::Exp(minus_abs)));
  for (size_t i = 0; i < v::kParts; ++i) soft.part[i] = hn::Sqrt(soft.part[i]);
  return soft;
}

// scores[n]: gate outputs in, scores out. -O3 may not reassociate, so a value does not depend on its place.
void ScoreRow(float* scores, int64_t n, float temperature) {
  const v::F32x16 t = v::Set16(temperature);
  for (int64_t e = 0; e < n; e += 16) {
    const auto left = static_cast<size_t>(std::min<int64_t>(16, n - e));
    if (left == 16) {
      v::StoreU16(Score(v::Div(v::LoadU16(scores + e), t)), scores + e);
    } else {
      v::StoreN16(Score(v::Div(v::LoadN16(scores + e, left), t)), scores + e, left);
    }
  }
}

}  // namespace
}  // namespace senko::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace senko::ops {

HWY_EXPORT(ScoreRow);

namespace {

// The topk best of scores + bias, best first.
void ChooseExperts(const float* scores, const float* bias, int64_t num_experts, int64_t topk, int32_t* ids) {
  uint64_t best[kMaxTopk] = {};  // ranks, descending
  int64_t kept = 0;
  for (int64_t e = 0; e < num_experts; ++e) {
    const uint64_t rank = Rank(scores[e] + bias[e], e);
    if (kept == topk && rank < best[topk - 1]) continue;
    int64_t at = kept < topk ? kept++ : topk - 1;
    for (; at > 0 && best[at - 1] < rank; --at) best[at] = best[at - 1];
    best[at] = rank;
  }
  for (int64_t k = 0; k < topk; ++k) ids[k] = static_cast<int32_t>(RankIndex(best[k]));
}

void WeighExperts(const RouterParams& p, int64_t row) {
  const float* scores = p.scores + row * p.num_experts;
  const int32_t* ids = p.ids + row * p.topk;
  float* weights = p.weights + row * p.topk;
  float sum = 0;
  for (int64_t k = 0; k < p.topk; ++k) sum += weights[k] = scores[ids[k]];
  for (int64_t k = 0; k < p.topk; ++k) {
    if (p.normalise && p.topk > 1) weights[k] /= sum + 1e-20f;
    weights[k] *= p.scaling;
  }
}

}  // namespace

void RouterCpu(const RouterParams& p, ThreadPool& pool) {
  SENKO_CHECK(p.topk >= 1 && p.topk <= std::min(p.num_experts, kMaxTopk) && p.gate.out == p.num_experts);
  LinearCpu({p.rows, p.x, p.gate.in, p.gate, p.scores, p.num_experts, /*round_bf16=*/false}, pool);
  const auto score = HWY_DYNAMIC_DISPATCH(ScoreRow);
  pool.ParallelFor(p.rows, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      float* scores = p.scores + row * p.num_experts;
      score(scores, p.num_experts, p.temperature);
      const float* bias = p.is_image != nullptr && p.is_image[row] != 0 ? p.bias_vl : p.bias;
      ChooseExperts(scores, bias, p.num_experts, p.topk, p.ids + row * p.topk);
      WeighExperts(p, row);
    }
  });
}

}  // namespace senko::ops
#endif
