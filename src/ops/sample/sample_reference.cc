// The truth: sort everything, keep a prefix, walk it.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "ops/sample/draw_scheme.h"
#include "ops/sample/sample.h"

namespace senko::ops {

int64_t SampleReference(const SampleParams& p) {
  SENKO_CHECK(p.vocab > 0 && p.vocab <= kMaxVocab);
  const size_t vocab = static_cast<size_t>(p.vocab);
  int64_t banned = 0;
  for (size_t i = 0; i < vocab; ++i) {
    if (std::isfinite(p.logits[i])) continue;
    if (p.logits[i] != -HUGE_VALF) return kRowNotFinite;
    ++banned;
  }
  if (banned != p.banned) return kRowNotFinite;
  if (banned == p.vocab) return kNothingAllowed;
  std::vector<int64_t> order(vocab);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return p.logits[a] > p.logits[b]; });
  if (IsGreedy(p.temperature)) return order[0];

  const float max = p.logits[order[0]];
  const double inverse = 1.0 / static_cast<double>(p.temperature);
  const double least = LeastExponent(p.min_p);
  std::vector<uint64_t> weight(vocab, 0);
  size_t kept = 0;
  uint64_t mass = 0;
  for (; kept < vocab && (p.top_k <= 0 || kept < static_cast<size_t>(p.top_k)); ++kept) {
    const double exponent = Exponent(p.logits[order[kept]], max, inverse);
    if (!(exponent >= least)) break;
    mass += weight[static_cast<size_t>(order[kept])] = FixedWeight(exponent);
  }
  const uint64_t target = NucleusMass(p.top_p, mass);
  uint64_t nucleus = 0;
  for (size_t i = 0; i < kept; ++i) {
    uint64_t& w = weight[static_cast<size_t>(order[i])];
    if (nucleus >= target) w = 0;
    nucleus += w;
  }
  uint64_t offset = DrawOffset(p, nucleus);
  for (size_t i = 0; i < vocab; ++i) {
    if (offset < weight[i]) return static_cast<int64_t>(i);
    offset -= weight[i];
  }
  SENKO_CHECK(false);
}

}  // namespace senko::ops
