// Sampling in a few passes over the logits, without sorting the vocabulary: SIMD finds the maximum and the
// total weight, truncation gathers the few tokens near the top and partitions those.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/sample/sample_cpu.cc"
#include <hwy/foreach_target.h>
// after foreach_target.h, as Highway wants it
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <span>
#include <vector>

#include "base/check.h"
#include "ops/sample/draw_scheme.h"
#include "ops/sample/row_scan-inl.h"
#include "ops/sample/sample.h"
#include "ops/sample/top_tokens.h"
#include "ops/select/order_key.h"

HWY_BEFORE_NAMESPACE();
namespace senko::ops::HWY_NAMESPACE {
namespace {

bool Max(const float* logits, int64_t n, int64_t banned, float* max) { return RowMax(logits, n, banned, max); }

uint64_t Sum(const float* logits, int64_t n, float max, double inverse, double least) {
  return SumWeights(logits, n, max, inverse, least);
}

int64_t Above(const float* logits, int64_t n, float bar, int32_t* ids) { return CollectAbove(logits, n, bar, ids); }

int64_t First(const float* logits, int64_t n, float value) { return FirstEqual(logits, n, value); }

}  // namespace
}  // namespace senko::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace senko::ops {

HWY_EXPORT(Max);
HWY_EXPORT(Sum);
HWY_EXPORT(Above);
HWY_EXPORT(First);

namespace {

struct Item {
  uint64_t rank;  // order_key.h
  uint64_t weight;
};

// A thread's own; it stops growing at the largest vocabulary and the broadest set seen.
struct Scratch {
  std::vector<int32_t> ids;
  std::vector<Item> items, nucleus;
  std::vector<uint64_t> sums;
  TopTokens top;
};

// One call's view of the row.
struct Row {
  const SampleParams& p;
  float max;
  double inverse;  // 1 / T
  double least;    // exponent that min_p asks for

  // Into `scratch.items`: tokens, ids ascending, with exponent >= max(level, least) and rank >= least_rank. The most
  // likely is always there.
  void Collect(double level, uint64_t least_rank, Scratch& scratch) const {
    const double bar = std::max({level, least, kLightest});
    // A little low, so that rounding loses nobody; the exact tests follow.
    const double logit = inverse > 0 ? static_cast<double>(max) + bar / inverse * (1 + 1e-9) : -HUGE_VAL;
    float low = std::nextafter(static_cast<float>(std::max(logit, double{-FLT_MAX})), -HUGE_VALF);
    if (least_rank > 0) low = std::max(low, p.logits[RankIndex(least_rank)]);
    scratch.ids.resize(static_cast<size_t>(p.vocab));
    const int64_t count = HWY_DYNAMIC_DISPATCH(Above)(p.logits, p.vocab, low, scratch.ids.data());
    scratch.items.clear();
    for (const int32_t id : std::span(scratch.ids).first(static_cast<size_t>(count))) {
      const float one = p.logits[id];
      const double exponent = Exponent(one, max, inverse);
      const uint64_t rank = Rank(one, id);
      if (exponent >= bar && rank >= least_rank) scratch.items.push_back({rank, FixedWeight(exponent)});
    }
  }
};

uint64_t Mass(const std::vector<Item>& items) {
  uint64_t mass = 0;
  for (const Item& item : items) mass += item.weight;
  return mass;
}

// The rank at which the heaviest-first prefix of the items reaches `target` <= their mass. Partitions a copy by halves.
uint64_t NucleusRank(Scratch& scratch, uint64_t target) {
  std::vector<Item>& items = scratch.nucleus;
  items = scratch.items;
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
int64_t DrawFromAll(const Row& row, Scratch& scratch) {
  constexpr int64_t kChunkTokens = 1024;
  const SampleParams& p = row.p;
  const auto sum_weights = HWY_DYNAMIC_DISPATCH(Sum);
  std::vector<uint64_t>& sums = scratch.sums;
  sums.clear();
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
  if (!HWY_DYNAMIC_DISPATCH(Max)(p.logits, p.vocab, p.banned, &max)) return kRowNotFinite;
  if (p.banned == p.vocab) return kNothingAllowed;
  if (IsGreedy(p.temperature)) return HWY_DYNAMIC_DISPATCH(First)(p.logits, p.vocab, max);

  thread_local Scratch scratch;
  const Row row{p, max, 1.0 / static_cast<double>(p.temperature), LeastExponent(p.min_p)};
  const bool cuts_k = p.top_k > 0 && p.top_k < p.vocab;
  if (!cuts_k && p.top_p >= 1) return DrawFromAll(row, scratch);

  if (cuts_k) {
    const auto best = scratch.top.Find(p.logits, p.vocab, p.top_k);
    row.Collect(-HUGE_VAL, *std::min_element(best.begin(), best.end()), scratch);
    const uint64_t cut = p.top_p >= 1 ? 0 : NucleusRank(scratch, NucleusMass(p.top_p, Mass(scratch.items)));
    return DrawFrom(p, scratch.items, cut);
  }
  const uint64_t total = HWY_DYNAMIC_DISPATCH(Sum)(p.logits, p.vocab, max, row.inverse, row.least);
  const uint64_t target = NucleusMass(p.top_p, total);
  // The nucleus usually lies a few nats below the top. A level's mass is found without gathering its tokens.
  for (const double level : {-5.0, -7.5, -10.0, -12.5, -15.0, kLightest}) {
    const double least = std::max(level, row.least);
    if (HWY_DYNAMIC_DISPATCH(Sum)(p.logits, p.vocab, max, row.inverse, least) < target) continue;
    row.Collect(level, 0, scratch);
    return DrawFrom(p, scratch.items, NucleusRank(scratch, target));
  }
  SENKO_CHECK(false);
}

}  // namespace senko::ops
#endif
