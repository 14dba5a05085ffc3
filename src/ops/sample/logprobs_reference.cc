// The truth: a softmax in double and a sort of the whole vocabulary.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <numeric>
#include <vector>

#include "ops/sample/logprobs.h"

namespace senko::ops {

bool LogprobsReference(const LogprobParams& p) {
  for (int64_t v = 0; v < p.vocab; ++v) {
    if (!std::isfinite(p.logits[v])) return false;
  }
  std::vector<int32_t> order(static_cast<size_t>(p.vocab));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return p.logits[a] > p.logits[b]; });
  const double max = static_cast<double>(p.logits[order[0]]);
  double sum = 0;
  for (int64_t v = 0; v < p.vocab; ++v) sum += std::exp(static_cast<double>(p.logits[v]) - max);
  const auto entry = [&](size_t place) {
    const double logprob = static_cast<double>(p.logits[order[place]]) - max - std::log(sum);
    return LogprobEntry{order[place], static_cast<float>(std::max(logprob, double{-FLT_MAX})),
                        static_cast<int64_t>(place) + 1};
  };
  *p.entry = entry(static_cast<size_t>(std::find(order.begin(), order.end(), p.token) - order.begin()));
  for (size_t i = 0; i < p.top.size(); ++i) p.top[i] = entry(i);
  return true;
}

}  // namespace senko::ops
