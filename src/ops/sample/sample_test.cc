// Sampling: the fast path draws the reference's token always, and the reference draws from the stated
// distribution.
#include "ops/sample/sample.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "ops/each_target.h"
#include "ops/sample/draw_scheme.h"

namespace senko::ops {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> Logits(int64_t vocab, float spread, uint64_t seed, bool coarse = false) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(-3, spread);
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (float& l : logits) l = coarse ? std::round(normal(random)) : normal(random);
  return logits;
}

TEST(DrawScheme, FixedWeightIsTheExponential) {
  EXPECT_EQ(FixedWeight(0), uint64_t{1} << kWeightBits);
  EXPECT_EQ(FixedWeight(-33), 0u);
  EXPECT_EQ(FixedWeight(-1e300), 0u);
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> uniform(-32, 0);
  for (int i = 0; i < 200000; ++i) {
    const double x = i % 2 == 0 ? uniform(random) : uniform(random) / 1024;
    const double want = std::ldexp(std::exp(x), kWeightBits);
    ASSERT_NEAR(static_cast<double>(FixedWeight(x)), want, 0.5 + 4e-15 * want) << x;
  }
}

TEST(Sample, FastPathDrawsTheReferencesToken) {
  uint64_t seed = 0;
  for (const int64_t vocab : {1, 2, 5, 17, 999}) {
    for (const float spread : {0.0f, 0.5f, 3.0f, 20.0f}) {
      for (const bool coarse : {false, true}) {
        const auto logits = Logits(vocab, spread, ++seed, coarse);
        for (const float temperature : {1.0f, 0.3f}) {
          for (const int64_t top_k : {int64_t{0}, int64_t{1}, int64_t{7}, vocab - 1, vocab, vocab + 5}) {
            for (const float top_p : {1.0f, 0.95f, 0.3f, 0.0f}) {
              for (const float min_p : {0.0f, 0.05f, 1.0f}) {
                SampleParams p{vocab, logits.data(), temperature, top_k, top_p, min_p, seed, 1, 42};
                const int64_t want = SampleReference(p);
                ASSERT_TRUE(want >= 0 && want < vocab);
                ForEachTarget([&] {
                  ASSERT_EQ(SampleCpu(p), want) << vocab << " spread " << spread << " T " << temperature << " k "
                                                << top_k << " p " << top_p << " m " << min_p;
                });
              }
            }
          }
        }
      }
    }
  }
}

TEST(Sample, FastPathOnAFullVocabulary) {
  for (const float spread : {0.0f, 0.2f, 2.0f, 6.0f}) {
    const auto logits = Logits(129280, spread, 7, spread == 2.0f);  // ties by the thousand
    for (uint64_t position = 0; position < 4; ++position) {
      for (const auto& [top_k, top_p, min_p] :
           {std::tuple{0, 1.0f, 0.0f}, {0, 0.95f, 0.0f}, {50, 0.9f, 0.0f}, {700, 1.0f, 0.0f}, {0, 0.999f, 0.001f}}) {
        const SampleParams p{129280, logits.data(), 1.0f, top_k, top_p, min_p, 9, 0, position};
        EXPECT_EQ(SampleCpu(p), SampleReference(p));
      }
    }
  }
}

TEST(Sample, GreedyAndTinyTemperaturesTakeTheFirstMaximum) {
  auto logits = Logits(777, 2, 3);
  logits[500] = logits[123] = 9;
  for (auto* sample : {SampleReference, SampleCpu}) {
    for (const float temperature : {0.0f, 1e-12f, 9e-6f, -1.0f}) {
      EXPECT_EQ(sample({777, logits.data(), temperature, 0, 1, 0, 5, 0, 0}), 123);
    }
  }
  logits[123] -= 1e-3f;
  for (auto* sample : {SampleReference, SampleCpu}) {
    for (uint64_t seed = 0; seed < 50; ++seed)
      EXPECT_EQ(sample({777, logits.data(), 1.1e-5f, 0, 1, 0, seed, 0, 0}), 500);
  }
}

TEST(Sample, HugeTemperaturesAndLogitsStayFinite) {
  std::vector<float> logits = {3.4e38f, -3.4e38f, std::numeric_limits<float>::lowest(), 1e-45f, -0.0f};
  for (const float temperature : {1.0f, 1e30f, 3.4e38f, kInf}) {
    for (const float top_p : {1.0f, 0.7f}) {
      for (const float min_p : {0.0f, 0.5f, 1.0f}) {
        std::vector<int> seen(5);
        for (uint64_t seed = 0; seed < 400; ++seed) {
          const SampleParams p{5, logits.data(), temperature, 0, top_p, min_p, seed, 0, 0};
          const int64_t want = SampleReference(p);
          ASSERT_TRUE(want >= 0 && want < 5);
          ASSERT_EQ(SampleCpu(p), want) << temperature << " " << top_p << " " << min_p;
          ++seen[static_cast<size_t>(want)];
        }
        if (temperature == kInf && top_p == 1) {
          for (const int n : seen) EXPECT_GT(n, 40);  // uniform: 80 each, sd 8
        }
      }
    }
  }
}

TEST(Sample, OneBadLogitFailsTheRow) {
  for (const float bad :
       {kInf, -kInf, std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()}) {
    for (const size_t at : {size_t{0}, size_t{37}, size_t{99}}) {
      auto logits = Logits(100, 1, 4);
      logits[at] = bad;
      for (const float temperature : {0.0f, 1.0f}) {
        EXPECT_EQ(SampleReference({100, logits.data(), temperature, 0, 0.9f, 0, 1, 0, 0}), -1);
        ForEachTarget([&] { EXPECT_EQ(SampleCpu({100, logits.data(), temperature, 0, 0.9f, 0, 1, 0, 0}), -1); });
      }
    }
  }
}

// Counts against probabilities; the statistic's mean is the degrees of freedom and its variance twice that.
void CheckCounts(const SampleParams& base, const std::vector<double>& probability, int draws) {
  std::vector<int> count(probability.size());
  SampleParams p = base;
  for (int i = 0; i < draws; ++i) {
    p.position = static_cast<uint64_t>(i);
    ++count[static_cast<size_t>(SampleCpu(p))];
  }
  double statistic = 0, cells = 0;
  for (size_t i = 0; i < count.size(); ++i) {
    if (probability[i] == 0) {
      EXPECT_EQ(count[i], 0) << "token " << i << " was cut off";
      continue;
    }
    const double expected = probability[i] * draws;
    statistic += (count[i] - expected) * (count[i] - expected) / expected;
    ++cells;
  }
  EXPECT_LT(statistic, cells - 1 + 5 * std::sqrt(2 * (cells - 1)) + 5);
}

std::vector<double> Softmax(const std::vector<float>& logits, double temperature, const std::vector<bool>& kept) {
  std::vector<double> p(logits.size());
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) sum += p[i] = kept[i] ? std::exp(logits[i] / temperature) : 0.0;
  for (double& x : p) x /= sum;
  return p;
}

TEST(Sample, DrawsFromTheSoftmax) {
  const std::vector<float> logits = {0.0f, 1.0f, -1.0f, 2.0f, 0.5f, 1.9f, -2.0f, 0.0f};
  const int draws = 40000;
  std::vector<bool> all(8, true);
  for (const float temperature : {1.0f, 0.5f, 3.0f}) {
    CheckCounts({8, logits.data(), temperature, 0, 1, 0, 11, 0, 0}, Softmax(logits, temperature, all), draws);
    CheckCounts({8, logits.data(), temperature, 0, 1, 0, 12, 3, 0}, Softmax(logits, temperature, all), draws);
  }
  // The order is 3, 5, 1, 4, 0, 7, 2, 6.
  CheckCounts({8, logits.data(), 1, 3, 1, 0, 13, 0, 0},
              Softmax(logits, 1, {false, true, false, true, false, true, false, false}), draws);
  CheckCounts({8, logits.data(), 1, 5, 1, 0, 14, 0, 0},  // a tie for the fifth place: id 0 before id 7
              Softmax(logits, 1, {true, true, false, true, true, true, false, false}), draws);
  // Masses 0.367, 0.332, 0.135, 0.082, ...: 0.8 needs three.
  CheckCounts({8, logits.data(), 1, 0, 0.8f, 0, 15, 0, 0},
              Softmax(logits, 1, {false, true, false, true, false, true, false, false}), draws);
  // min_p 0.2 keeps 3, 5, 1 and 4 (e^-1.5 = 0.223).
  CheckCounts({8, logits.data(), 1, 0, 1, 0.2f, 16, 0, 0},
              Softmax(logits, 1, {false, true, false, true, true, true, false, false}), draws);
  // top_k 2 first, then top_p of what is left: 3 alone has 0.525 of the pair.
  CheckCounts({8, logits.data(), 1, 2, 0.52f, 0, 17, 0, 0},
              Softmax(logits, 1, {false, false, false, true, false, false, false, false}), 500);
}

TEST(Sample, SeedChoiceAndPositionAreIndependentStreams) {
  const auto logits = Logits(1000, 0.1f, 21);
  SampleParams p{1000, logits.data(), 1, 0, 1, 0, 1, 0, 0};
  int same = 0;
  for (uint64_t i = 1; i <= 300; ++i) {
    SampleParams seed = p, choice = p, position = p;
    seed.seed = choice.choice = position.position = i + 1;
    const int64_t a = SampleCpu(seed), b = SampleCpu(choice), c = SampleCpu(position);
    same += (a == b) + (b == c) + (a == c);
    EXPECT_EQ(SampleCpu(seed), a);
  }
  EXPECT_LT(same, 12);  // about one in a thousand
}

}  // namespace
}  // namespace senko::ops
