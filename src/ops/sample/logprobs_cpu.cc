// Four passes over the row: its maximum, its mass, the token's rank, the top.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/sample/logprobs_cpu.cc"
#include <hwy/foreach_target.h>
// after foreach_target.h, as Highway wants it
#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <functional>

#include "base/check.h"
#include "numerics/simd/lanes-inl.h"
#include "ops/sample/draw_scheme.h"
#include "ops/sample/logprobs.h"
#include "ops/sample/row_scan-inl.h"
#include "ops/sample/top_tokens.h"
#include "ops/select/order_key.h"

HWY_BEFORE_NAMESPACE();
namespace senko::ops::HWY_NAMESPACE {
namespace {

namespace v = numerics::HWY_NAMESPACE;
namespace hn = hwy::HWY_NAMESPACE;

bool RowMass(const float* logits, int64_t n, float* max, uint64_t* mass) {
  if (!RowMax(logits, n, 0, max)) return false;
  *mass = SumWeights(logits, n, *max, 1.0, -HUGE_VAL);
  return true;
}

// Logits of n that are above `bar`, or at it too.
template <bool kOrEqual>
HWY_INLINE int64_t CountAbove(const float* logits, int64_t n, float bar) {
  const v::NativeF32 d;
  const v::NativeU32 du;
  constexpr int64_t kLanes = static_cast<int64_t>(v::kNativeLanes);
  const auto bars = hn::Set(d, bar);
  auto counts = hn::Zero(du);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto x = hn::LoadU(d, logits + i);
    const auto above = kOrEqual ? hn::Ge(x, bars) : hn::Gt(x, bars);
    counts = hn::Sub(counts, hn::VecFromMask(du, hn::RebindMask(du, above)));
  }
  alignas(64) uint32_t lanes[16];
  hn::Store(counts, du, lanes);
  int64_t total = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) total += lanes[lane];
  for (; i < n; ++i) total += (kOrEqual ? logits[i] >= bar : logits[i] > bar) ? 1 : 0;
  return total;
}

int64_t RankOf(const float* logits, int64_t n, int64_t token) {
  const float bar = logits[token];
  return 1 + CountAbove<true>(logits, token, bar) + CountAbove<false>(logits + token + 1, n - token - 1, bar);
}

}  // namespace
}  // namespace senko::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace senko::ops {

HWY_EXPORT(RowMass);
HWY_EXPORT(RankOf);

bool LogprobsCpu(const LogprobParams& p) {
  SENKO_CHECK(p.vocab > 0 && p.vocab <= kMaxVocab && p.token >= 0 && p.token < p.vocab);
  const int64_t top = static_cast<int64_t>(p.top.size());
  SENKO_CHECK(top <= kMaxTopLogprobs && top <= p.vocab);
  float max;
  uint64_t mass;
  if (!HWY_DYNAMIC_DISPATCH(RowMass)(p.logits, p.vocab, &max, &mass)) return false;
  const double log_mass = std::log(std::ldexp(static_cast<double>(mass), -kWeightBits));
  const auto entry = [&](int64_t token, int64_t rank) {
    const double logprob = Exponent(p.logits[token], max, 1.0) - log_mass;
    return LogprobEntry{static_cast<int32_t>(token), static_cast<float>(std::max(logprob, double{-FLT_MAX})), rank};
  };
  *p.entry = entry(p.token, HWY_DYNAMIC_DISPATCH(RankOf)(p.logits, p.vocab, p.token));
  if (top == 0) return true;

  thread_local TopTokens tokens;
  const auto found = tokens.Find(p.logits, p.vocab, top);
  std::array<uint64_t, kMaxTopLogprobs> best;
  const auto end = std::copy(found.begin(), found.end(), best.begin());
  std::sort(best.begin(), end, std::greater<>());
  for (int64_t i = 0; i < top; ++i) {
    p.top[static_cast<size_t>(i)] = entry(RankIndex(best[static_cast<size_t>(i)]), i + 1);
  }
  return true;
}

}  // namespace senko::ops
#endif
