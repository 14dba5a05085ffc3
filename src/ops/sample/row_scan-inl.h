// Passes over a row of logits that the draw and the log-probabilities share.
//
// Included once per target (no ordinary include guard).
#if defined(SENKO_OPS_SAMPLE_ROW_SCAN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SENKO_OPS_SAMPLE_ROW_SCAN_INL_H_
#undef SENKO_OPS_SAMPLE_ROW_SCAN_INL_H_
#else
#define SENKO_OPS_SAMPLE_ROW_SCAN_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "numerics/simd/lanes-inl.h"
#include "ops/sample/draw_scheme.h"

HWY_BEFORE_NAMESPACE();
namespace senko::ops {
namespace HWY_NAMESPACE {

// The largest logit. False when a logit is NaN or infinite, other than exactly `banned` negative infinities.
HWY_INLINE bool RowMax(const float* logits, int64_t n, int64_t banned, float* max) {
  namespace v = numerics::HWY_NAMESPACE;
  namespace hn = hwy::HWY_NAMESPACE;
  const v::NativeF32 d;
  const v::NativeU32 du;
  constexpr int64_t kLanes = static_cast<int64_t>(v::kNativeLanes);
  auto top = hn::Set(d, logits[0]);
  auto not_finite = hn::Zero(du);  // counts, per lane
  auto lowest = hn::Zero(du);
  const auto field = hn::Set(du, 0x7F800000u);
  const auto low = hn::Set(du, 0xFF800000u);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto x = hn::LoadU(d, logits + i);
    const auto bits = hn::BitCast(du, x);
    top = hn::Max(top, x);
    not_finite = hn::Sub(not_finite, hn::VecFromMask(du, hn::Eq(hn::And(bits, field), field)));
    lowest = hn::Sub(lowest, hn::VecFromMask(du, hn::Eq(bits, low)));
  }
  alignas(64) float tops[16];
  alignas(64) uint32_t bad[16], least[16];
  hn::Store(top, d, tops);
  hn::Store(not_finite, du, bad);
  hn::Store(lowest, du, least);
  float best = tops[0];
  int64_t bad_count = 0, least_count = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    best = std::max(best, tops[lane]);
    bad_count += bad[lane];
    least_count += least[lane];
  }
  for (; i < n; ++i) {
    bad_count += std::isfinite(logits[i]) ? 0 : 1;
    least_count += logits[i] == -HUGE_VALF ? 1 : 0;
    best = std::max(best, logits[i]);
  }
  *max = best;
  return bad_count == banned && least_count == banned;
}

// The first id whose logit equals `value`, which one does.
HWY_INLINE int64_t FirstEqual(const float* logits, int64_t n, float value) {
  namespace v = numerics::HWY_NAMESPACE;
  namespace hn = hwy::HWY_NAMESPACE;
  const v::NativeF32 d;
  constexpr int64_t kLanes = static_cast<int64_t>(v::kNativeLanes);
  const auto values = hn::Set(d, value);
  int64_t i = 0;
  while (i + kLanes <= n && hn::AllFalse(d, hn::Eq(hn::LoadU(d, logits + i), values))) i += kLanes;
  return std::find(logits + i, logits + n, value) - logits;
}

// Ids, ascending, of logits at or above `bar`. Returns their number; `ids` has room for n.
HWY_INLINE int64_t CollectAbove(const float* logits, int64_t n, float bar, int32_t* ids) {
  namespace v = numerics::HWY_NAMESPACE;
  namespace hn = hwy::HWY_NAMESPACE;
  const v::NativeF32 d;
  constexpr int64_t kLanes = static_cast<int64_t>(v::kNativeLanes);
  const auto bars = hn::Set(d, bar);
  int64_t count = 0, i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    if (hn::AllFalse(d, hn::Ge(hn::LoadU(d, logits + i), bars))) continue;
    for (int64_t j = i; j < i + kLanes; ++j) {
      if (logits[j] >= bar) ids[count++] = static_cast<int32_t>(j);
    }
  }
  for (; i < n; ++i) {
    if (logits[i] >= bar) ids[count++] = static_cast<int32_t>(i);
  }
  return count;
}

// FixedWeight's steps on a vector of doubles: the same operations, so the same bits. NaN weighs nothing.
template <class D, class V>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<hwy::HWY_NAMESPACE::RebindToUnsigned<D>> FixedWeights(D d, V exponent, V least) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::RebindToUnsigned<D> du;
  const auto heavy = hn::Ge(exponent, least);
  const auto clamped = hn::Max(exponent, hn::Set(d, kLightest));
  const auto round = hn::Set(d, exp_scheme::kRound);
  const auto shifted = hn::Add(hn::Mul(clamped, hn::Set(d, exp_scheme::kLog2E)), round);
  const auto n = hn::Sub(shifted, round);
  auto r = hn::Sub(clamped, hn::Mul(n, hn::Set(d, exp_scheme::kLn2High)));
  r = hn::Sub(r, hn::Mul(n, hn::Set(d, exp_scheme::kLn2Low)));
  auto p = hn::Set(d, exp_scheme::kTaylor.of[0]);
  for (int i = 1; i < 14; ++i) p = hn::Add(hn::Mul(p, r), hn::Set(d, exp_scheme::kTaylor.of[i]));
  const auto scale = hn::ShiftLeft<52>(hn::Add(hn::BitCast(du, shifted), hn::Set(du, uint64_t{1023 + kWeightBits})));
  const auto rounded = hn::Add(hn::Mul(p, hn::BitCast(d, scale)), hn::Set(d, exp_scheme::kToInteger));
  const auto weight = hn::And(hn::BitCast(du, rounded), hn::Set(du, (uint64_t{1} << 52) - 1));
  return hn::IfThenElseZero(hn::RebindMask(du, heavy), weight);
}

// Sum of the weights of n tokens whose exponent is at least `least`.
HWY_INLINE uint64_t SumWeights(const float* logits, int64_t n, float max, double inverse, double least) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::CappedTag<double, 8> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::Rebind<float, decltype(d)> df;
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(d));
  const double floor = std::max(least, kLightest);
  auto sum = hn::Zero(du);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto x = hn::PromoteTo(d, hn::LoadU(df, logits + i));
    const auto exponent = hn::Mul(hn::Sub(x, hn::Set(d, static_cast<double>(max))), hn::Set(d, inverse));
    const auto least_vector = hn::Set(d, floor);
    if (hn::AllFalse(d, hn::Ge(exponent, least_vector))) continue;
    sum = hn::Add(sum, FixedWeights(d, exponent, least_vector));
  }
  alignas(64) uint64_t lanes[8] = {};
  hn::Store(sum, du, lanes);
  uint64_t total = 0;
  for (const uint64_t lane : lanes) total += lane;
  for (; i < n; ++i) {
    const double exponent = Exponent(logits[i], max, inverse);
    if (exponent >= floor) total += FixedWeight(exponent);
  }
  return total;
}

}  // namespace HWY_NAMESPACE
}  // namespace senko::ops
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
