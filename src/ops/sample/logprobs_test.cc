// Log-probabilities against a softmax in double; ranks and the top exactly.
#include "ops/sample/logprobs.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "ops/each_target.h"
#include "ops/sample/sample.h"

namespace senko::ops {
namespace {

std::vector<float> Logits(int64_t vocab, float spread, bool coarse, std::mt19937_64& random) {
  std::normal_distribution<float> normal(-3, spread);
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (float& l : logits) l = coarse ? std::round(normal(random)) : normal(random);
  return logits;
}

struct Result {
  LogprobEntry entry{-7, std::numeric_limits<float>::quiet_NaN(), -7};
  std::vector<LogprobEntry> top;
  bool finite;

  Result(bool (*logprobs)(const LogprobParams&), const std::vector<float>& logits, int32_t token, size_t count)
      : top(count, entry) {
    finite = logprobs({static_cast<int64_t>(logits.size()), logits.data(), token, &entry, top});
  }
};

// Two roundings to float, and logprobs.h's bound of the sum: half of 2^-44 per token, and e^-32 per token left out.
void ExpectNear(const LogprobEntry& got, const LogprobEntry& want, int64_t vocab) {
  EXPECT_EQ(got.token, want.token);
  EXPECT_EQ(got.rank, want.rank);
  const double sum_bound = static_cast<double>(vocab) * (0x1p-45 + std::exp(-32.0));
  EXPECT_NEAR(got.logprob, want.logprob, std::fabs(want.logprob) * 0x1p-23 + sum_bound + 1e-14);
}

void ExpectSame(const LogprobEntry& a, const LogprobEntry& b) {
  EXPECT_EQ(a.token, b.token);
  EXPECT_EQ(a.rank, b.rank);
  EXPECT_EQ(std::memcmp(&a.logprob, &b.logprob, sizeof(a.logprob)), 0);
}

TEST(Logprobs, MatchTheReference) {
  std::mt19937_64 random(std::random_device{}());
  for (const int64_t vocab : {1, 2, 17, 130, 999, 5300, 129280}) {
    for (const float spread : {0.0f, 0.5f, 3.0f, 20.0f}) {
      for (const bool coarse : {false, true}) {
        const auto logits = Logits(vocab, spread, coarse, random);
        const auto token = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab));
        const size_t top = static_cast<size_t>(std::min<int64_t>(vocab, static_cast<int64_t>(random() % 21)));
        const Result want(LogprobsReference, logits, token, top);
        const Result native(LogprobsCpu, logits, token, top);
        ForEachTarget([&] {
          const Result got(LogprobsCpu, logits, token, top);
          ASSERT_TRUE(got.finite);
          ExpectNear(got.entry, want.entry, vocab);
          ExpectSame(got.entry, native.entry);  // SIMD levels agree in every bit
          for (size_t i = 0; i < top; ++i) {
            ExpectNear(got.top[i], want.top[i], vocab);
            ExpectSame(got.top[i], native.top[i]);
          }
        });
      }
    }
  }
}

TEST(Logprobs, EqualLogitsRankByTheirIds) {
  const std::vector<float> logits = {1, 2, -0.0f, 2, 0.0f, 1, 2};  // order: 1 3 6 0 5 2 4
  for (auto* logprobs : {LogprobsReference, LogprobsCpu}) {
    const std::vector<int32_t> order = {1, 3, 6, 0, 5, 2, 4};
    for (size_t i = 0; i < order.size(); ++i) {
      const Result got(logprobs, logits, order[i], 7);
      EXPECT_EQ(got.entry.rank, static_cast<int64_t>(i) + 1);
      EXPECT_EQ(got.top[i].token, order[i]);
      ExpectSame(got.top[i], got.entry);
    }
    // The greedy draw is the token of rank 1.
    EXPECT_EQ(SampleCpu({7, logits.data(), 0, 0, 1, 0, 1, 0, 0}), order[0]);
  }
}

// ln(1/4) and the like: the values themselves, not only agreement.
TEST(Logprobs, KnownValues) {
  for (auto* logprobs : {LogprobsReference, LogprobsCpu}) {
    EXPECT_FLOAT_EQ(Result(logprobs, {5, 5, 5, 5}, 2, 0).entry.logprob, -1.3862944f);
    EXPECT_EQ(Result(logprobs, {42}, 0, 1).entry.logprob, 0.0f);
    EXPECT_FLOAT_EQ(Result(logprobs, {0, -100}, 1, 2).top[1].logprob, -100.0f);
    EXPECT_EQ(Result(logprobs, {FLT_MAX, -FLT_MAX}, 1, 0).entry.logprob, -FLT_MAX);  // not -infinity
  }
}

TEST(Logprobs, AFaultyRowIsReportedAndNothingIsWritten) {
  std::mt19937_64 random(std::random_device{}());
  for (const float bad :
       {HUGE_VALF, -HUGE_VALF, std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()}) {
    for (const size_t at : {size_t{0}, size_t{37}, size_t{99}}) {
      auto logits = Logits(100, 1, false, random);
      logits[at] = bad;
      for (auto* logprobs : {LogprobsReference, LogprobsCpu}) {
        ForEachTarget([&] {
          const Result got(logprobs, logits, 5, 3);
          EXPECT_FALSE(got.finite);
          EXPECT_EQ(got.entry.token, -7);
          EXPECT_EQ(got.top[0].token, -7);
        });
      }
    }
  }
}

}  // namespace
}  // namespace senko::ops
