// Sampling in a few passes over the logits, without sorting the vocabulary: SIMD finds the maximum and the
// total weight, truncation gathers the few tokens near the top and partitions those.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/sample/sample_cpu.cc"
#include <hwy/foreach_target.h>
// after foreach_target.h, as Highway wants it
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "numerics/simd/lanes-inl.h"
#include "ops/sample/draw_scheme.h"
#include "ops/sample/sample.h"
#include "ops/select/order_key.h"
#include "ops/select/running_topk.h"
#include "tensor/buffer.h"

HWY_BEFORE_NAMESPACE();
namespace senko::ops::HWY_NAMESPACE {
namespace {

namespace v = numerics::HWY_NAMESPACE;
namespace hn = hwy::HWY_NAMESPACE;

// The largest logit; false when one of them is not finite.
bool FiniteMax(const float* logits, int64_t n, float* max) {
  const v::NativeF32 d;
  const v::NativeU32 du;
  constexpr int64_t kLanes = static_cast<int64_t>(v::kNativeLanes);
  auto top = hn::Set(d, logits[0]);
  auto exponents = hn::Zero(du);  // the largest exponent field
  const auto field = hn::Set(du, 0x7F800000u);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto x = hn::LoadU(d, logits + i);
    top = hn::Max(top, x);
    exponents = hn::Max(exponents, hn::And(hn::BitCast(du, x), field));
  }
  bool finite = hn::AllTrue(du, hn::Lt(exponents, field));
  alignas(64) float lanes[16];
  hn::Store(top, d, lanes);
  float best = *std::max_element(lanes, lanes + kLanes);
  for (; i < n; ++i) {
    finite = finite && std::isfinite(logits[i]);
    best = std::max(best, logits[i]);
  }
  *max = best;
  return finite;
}

// FixedWeight's steps on a vector of doubles: the same operations, so the same bits.
template <class D, class V>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> FixedWeights(D d, V exponent, V least) {
  const hn::RebindToUnsigned<D> du;
  const auto heavy = hn::Ge(exponent, least);
  const auto clamped = hn::Max(exponent, hn::Set(d, kLightest));
  const auto round = hn::Set(d, exp_scheme::kRound);
  const auto shifted = hn::Add(hn::Mul(clamped, hn::Set(d, exp_scheme::kLog2E)), round);
  const auto n = hn::Sub(shifted, round);
  auto r = hn::Sub(clamped, hn::Mul(n, hn::Set(d, exp_scheme::kLn2High)));
  r = hn::Sub(r, hn::Mul(n, hn::Set(d, exp_scheme::kLn2Low)));
  auto p = hn::Set(d, exp_scheme::kTaylor[0]);
  for (int i = 1; i < 14; ++i) p = hn::Add(hn::Mul(p, r), hn::Set(d, exp_scheme::kTaylor[i]));
  const auto scale = hn::ShiftLeft<52>(hn::Add(hn::BitCast(du, shifted), hn::Set(du, uint64_t{1023 + kWeightBits})));
  const auto rounded = hn::Add(hn::Mul(p, hn::BitCast(d, scale)), hn::Set(d, exp_scheme::kToInteger));
  const auto weight = hn::And(hn::BitCast(du, rounded), hn::Set(du, (uint64_t{1} << 52) - 1));
  return hn::IfThenElseZero(hn::RebindMask(du, heavy), weight);
}

// Sum of the weights of n tokens whose exponent is at least `least`.
uint64_t SumWeights(const float* logits, int64_t n, float max, double inverse, double least) {
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

// Ids, ascending, of logits at or above `bar`. Returns their number; `ids` has room for n.
int64_t CollectAbove(const float* logits, int64_t n, float bar, int32_t* ids) {
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

}  // namespace
}  // namespace senko::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace senko::ops {

HWY_EXPORT(FiniteMax);
HWY_EXPORT(SumWeights);
HWY_EXPORT(CollectAbove);

namespace {

struct Item {
  uint64_t rank;  // order_key.h
  uint64_t weight;
};

// One call's view of the row.
struct Row {
  const SampleParams& p;
  float max;
  double inverse;  // 1 / T
  double least;    // exponent that min_p asks for

  // Tokens, ids ascending, with exponent >= max(level, least) and rank >= least_rank. The most likely is
  // always there.
  std::vector<Item> Collect(double level, uint64_t least_rank) const {
    const double bar = std::max({level, least, kLightest});
    // A little low, so that rounding loses nobody; the exact tests follow.
    const double logit = inverse > 0 ? static_cast<double>(max) + bar / inverse * (1 + 1e-9) : -HUGE_VAL;
    float low = std::nextafter(static_cast<float>(std::max(logit, double{-FLT_MAX})), -HUGE_VALF);
    if (least_rank > 0) low = std::max(low, p.logits[RankIndex(least_rank)]);
    Buffer<int32_t> ids(static_cast<size_t>(p.vocab));
    const int64_t count = HWY_DYNAMIC_DISPATCH(CollectAbove)(p.logits, p.vocab, low, ids.data());
    std::vector<Item> items;
    for (const int32_t id : ids.span().first(static_cast<size_t>(count))) {
      const float one = p.logits[id];
      const double exponent = Exponent(one, max, inverse);
      const uint64_t rank = Rank(one, id);
      if (exponent >= bar && rank >= least_rank) items.push_back({rank, FixedWeight(exponent)});
    }
    return items;
  }
};

uint64_t Mass(const std::vector<Item>& items) {
  uint64_t mass = 0;
  for (const Item& item : items) mass += item.weight;
  return mass;
}

// The rank at which the heaviest-first prefix of `items` reaches `target` <= their mass. Partitions by
// halves.
uint64_t NucleusRank(std::vector<Item> items, uint64_t target) {
  size_t low = 0, high = items.size();
  while (high - low > 1) {
    const size_t middle = low + (high - low) / 2;
    std::nth_element(items.begin() + static_cast<std::ptrdiff_t>(low),
                     items.begin() + static_cast<std::ptrdiff_t>(middle),
                     items.begin() + static_cast<std::ptrdiff_t>(high),
                     [](const Item& a, const Item& b) { return a.rank > b.rank; });
    uint64_t upper = 0;
    for (size_t i = low; i < middle; ++i) upper += items[i].weight;
    if (upper >= target) {
      high = middle;
    } else {
      target -= upper;
      low = middle;
    }
  }
  return items[low].rank;
}

int64_t DrawFrom(const SampleParams& p, const std::vector<Item>& items, uint64_t least_rank) {
  uint64_t mass = 0;
  for (const Item& item : items) mass += item.rank >= least_rank ? item.weight : 0;
  uint64_t offset = DrawOffset(p, mass);
  for (const Item& item : items) {
    if (item.rank < least_rank) continue;
    if (offset < item.weight) return RankIndex(item.rank);
    offset -= item.weight;
  }
  SENKO_CHECK(false);
}

// No top_k, no top_p: sums by chunks, then one chunk token by token.
int64_t DrawFromAll(const Row& row) {
  constexpr int64_t kChunkTokens = 1024;
  const SampleParams& p = row.p;
  const auto sum_weights = HWY_DYNAMIC_DISPATCH(SumWeights);
  std::vector<uint64_t> sums;
  uint64_t mass = 0;
  for (int64_t begin = 0; begin < p.vocab; begin += kChunkTokens) {
    sums.push_back(
        sum_weights(p.logits + begin, std::min(kChunkTokens, p.vocab - begin), row.max, row.inverse, row.least));
    mass += sums.back();
  }
  uint64_t offset = DrawOffset(p, mass);
  size_t chunk = 0;
  while (offset >= sums[chunk]) offset -= sums[chunk++];
  for (int64_t id = static_cast<int64_t>(chunk) * kChunkTokens; id < p.vocab; ++id) {
    const double exponent = Exponent(p.logits[id], row.max, row.inverse);
    const uint64_t weight = exponent >= row.least ? FixedWeight(exponent) : 0;
    if (offset < weight) return id;
    offset -= weight;
  }
  SENKO_CHECK(false);
}

}  // namespace

int64_t SampleCpu(const SampleParams& p) {
  SENKO_CHECK(p.vocab > 0 && p.vocab <= kMaxVocab);
  float max;
  if (!HWY_DYNAMIC_DISPATCH(FiniteMax)(p.logits, p.vocab, &max)) return -1;
  if (IsGreedy(p.temperature)) return std::find(p.logits, p.logits + p.vocab, max) - p.logits;

  const Row row{p, max, 1.0 / static_cast<double>(p.temperature), LeastExponent(p.min_p)};
  const bool cuts_k = p.top_k > 0 && p.top_k < p.vocab;
  if (!cuts_k && p.top_p >= 1) return DrawFromAll(row);

  if (cuts_k) {
    RunningTopK top(p.top_k);
    top.Offer(p.logits, p.vocab, 0);
    const auto best = top.Best();
    const std::vector<Item> items = row.Collect(-HUGE_VAL, *std::min_element(best.begin(), best.end()));
    const uint64_t cut = p.top_p >= 1 ? 0 : NucleusRank(items, NucleusMass(p.top_p, Mass(items)));
    return DrawFrom(p, items, cut);
  }
  const uint64_t total = HWY_DYNAMIC_DISPATCH(SumWeights)(p.logits, p.vocab, max, row.inverse, row.least);
  const uint64_t target = NucleusMass(p.top_p, total);
  // The nucleus usually lies a few nats below the top. A level's mass is found without gathering its tokens.
  for (const double level : {-5.0, -7.5, -10.0, -12.5, -15.0, kLightest}) {
    const double least = std::max(level, row.least);
    if (HWY_DYNAMIC_DISPATCH(SumWeights)(p.logits, p.vocab, max, row.inverse, least) < target) continue;
    const std::vector<Item> items = row.Collect(level, 0);
    return DrawFrom(p, items, NucleusRank(items, target));
  }
  SENKO_CHECK(false);
}

}  // namespace senko::ops
#endif
