// A configuration that is accepted never meets an operator that refuses it: the limits that config publishes
// are the operators' own, and the operators run at them.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "config/model_config.h"
#include "ops/mhc/mhc.h"
#include "ops/norm/norm.h"
#include "ops/router/router.h"
#include "ops/sample/sample.h"

namespace senko::ops {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

static_assert(config::kMaxStreams == kMaxStreams);
static_assert(config::kMaxExpertsPerToken == kMaxTopk);
static_assert(config::kMaxVocabSize == kMaxVocab);

TEST(ConfigLimits, SampleTakesTheLargestVocabulary) {
  std::vector<float> logits(static_cast<size_t>(config::kMaxVocabSize), 0.5f);
  // All tokens equally likely: the sum of weights is the largest there is, and the last id must be reachable.
  SampleParams p{.vocab = config::kMaxVocabSize, .logits = logits.data(), .temperature = 1};
  int64_t largest = 0;
  for (p.position = 0; p.position < 8; ++p.position) {
    const int64_t id = SampleCpu(p);
    EXPECT_EQ(id, SampleReference(p));
    EXPECT_LT(id, config::kMaxVocabSize);
    largest = std::max(largest, id);
  }
  EXPECT_GT(largest, config::kMaxVocabSize / 2);  // missed once in 2^8 seeds; the seed is fixed
}

TEST(ConfigLimits, RouterTakesTheMostExpertsPerToken) {
  const int64_t experts = 80, hidden = 32, topk = config::kMaxExpertsPerToken;
  const std::vector<uint16_t> gate(static_cast<size_t>(experts * hidden), 0);
  const std::vector<float> x(static_cast<size_t>(hidden), 1.0f);
  std::vector<float> bias(static_cast<size_t>(experts)), scores(bias.size(), kNan), weights(64, kNan);
  for (size_t e = 0; e < bias.size(); ++e) bias[e] = static_cast<float>(e);  // the last experts are the best
  std::vector<int32_t> ids(64, -1);
  RouterParams p;
  p.rows = 1;
  p.num_experts = experts;
  p.topk = topk;
  p.x = x.data();
  p.gate = {WeightFormat::kBf16, experts, hidden, reinterpret_cast<const uint8_t*>(gate.data()), nullptr};
  p.bias = p.bias_vl = bias.data();
  p.scores = scores.data();
  p.ids = ids.data();
  p.weights = weights.data();
  ThreadPool pool(1);
  RouterCpu(p, pool);
  for (int64_t k = 0; k < topk; ++k) {
    EXPECT_EQ(ids[static_cast<size_t>(k)], experts - 1 - k);
    EXPECT_NEAR(weights[static_cast<size_t>(k)], 1.0f / static_cast<float>(topk), 1e-6f);
  }
}

TEST(ConfigLimits, HyperConnectionsTakeTheMostStreams) {
  const int64_t hc = config::kMaxStreams, hidden = 32, outputs = (2 + hc) * hc;
  const auto floats = [](int64_t n, float value) { return std::vector<float>(static_cast<size_t>(n), value); };
  const auto fn = floats(outputs * hc * hidden, 0), base = floats(outputs, 0), scale = floats(3, 1);
  auto x = floats(hc * hidden, 2), y = floats(hidden, kNan), mixes = floats(outputs, kNan);
  auto pre = floats(hc, kNan), post = floats(hc, kNan), comb = floats(hc * hc, kNan);
  ThreadPool pool(1);
  MhcMixParams mix;
  mix.rows = 1;
  mix.streams = hc;
  mix.hidden = hidden;
  mix.x = x.data();
  mix.fn = {WeightFormat::kF32, outputs, hc * hidden, reinterpret_cast<const uint8_t*>(fn.data()), nullptr};
  mix.base = base.data();
  mix.scale = scale.data();
  mix.rms_eps = mix.hc_eps = 1e-6f;
  mix.sinkhorn_iters = 20;
  mix.mixes = mixes.data();
  mix.pre = pre.data();
  mix.post = post.data();
  mix.comb = comb.data();
  MhcMixCpu(mix, pool);
  // A zero projection: pre = 1/2, post = 1, comb = 1 / hc everywhere.
  for (const float v : pre) EXPECT_NEAR(v, 0.5f, 1e-5f);
  for (const float v : post) EXPECT_NEAR(v, 1.0f, 1e-5f);
  for (const float v : comb) EXPECT_NEAR(v, 1.0f / static_cast<float>(hc), 1e-5f);

  MhcCollapseParams collapse{.rows = 1, .streams = hc, .hidden = hidden, .x = x.data(), .pre = pre.data()};
  collapse.y = y.data();
  MhcCollapseCpu(collapse, pool);
  for (const float v : y) EXPECT_NEAR(v, static_cast<float>(hc), 1e-3f);

  MhcExpandParams expand{.rows = 1, .streams = hc, .hidden = hidden, .y = y.data(), .post = post.data()};
  expand.comb = comb.data();
  expand.x = x.data();
  MhcExpandCpu(expand, pool);
  for (const float v : x) EXPECT_NEAR(v, static_cast<float>(hc) + 2, 1e-3f);
}

TEST(ConfigLimits, RotaryFrequenciesTakeTheSmallestBase) {
  RopeSpec spec{.rope_dim = 64, .base = config::kMinRopeTheta};
  for (const int64_t original : {0, 1, 1 << 24}) {
    spec.original_max_positions = original;
    for (const float f : RopeInvFreq(spec)) EXPECT_TRUE(std::isfinite(f) && f > 0 && f <= 1) << f;
  }
}

}  // namespace
}  // namespace senko::ops
