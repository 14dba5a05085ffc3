// The truth: every token of the vocabulary in turn, each list searched for it.
#include <algorithm>
#include <cmath>

#include "ops/sample/processors.h"

namespace senko::ops {

int64_t ProcessReference(const ProcessorParams& p) {
  int64_t bans = 0;
  for (int64_t v = 0; v < p.vocab; ++v) {
    float x = p.logits[v];
    for (const auto& [token, bias] : p.bias) {
      if (token == v) x = x + bias;
    }
    const bool allowed = p.allowed == nullptr || (p.allowed[v / 32] >> (v % 32) & 1) != 0;
    if (!allowed || std::find(p.banned.begin(), p.banned.end(), v) != p.banned.end()) {
      if (std::isfinite(x)) ++bans;
      x = -HUGE_VALF;
    }
    const auto output = std::find_if(p.output.begin(), p.output.end(), [v](const auto& o) { return o.token == v; });
    const bool in_prompt = std::find(p.prompt.begin(), p.prompt.end(), v) != p.prompt.end();
    if (in_prompt || output != p.output.end()) x = x > 0 ? x / p.repetition : x * p.repetition;
    if (output != p.output.end()) {
      x = x - p.frequency * static_cast<float>(output->count);
      x = x - p.presence;
    }
    p.logits[v] = x;
  }
  return bans;
}

}  // namespace senko::ops
