// LogitsCpu against LogitsReference; the `finite` flags.
#include "ops/logits/logits.h"

#include <cmath>

#include "gtest/gtest.h"
#include "ops/linear/linear_test_util.h"

namespace senko::ops {
namespace {

using test::Poisoned;
using test::RandomFloats;
using test::Weight;

LogitsParams Params(const Weight& head, const std::vector<float>& x, std::vector<float>& logits) {
  LogitsParams p;
  p.rows = static_cast<int64_t>(x.size()) / head.view.in;
  p.x = x.data();
  p.head = head.view;
  p.logits = logits.data();
  return p;
}

TEST(Logits, MatchTheReference) {
  std::mt19937 random(std::random_device{}());
  ThreadPool pool(2);
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    const test::OnTarget on(target);
    for (int64_t rows : {1, 3, 12}) {
      const Weight head(WeightFormat::kBf16, 257, 1100, random);
      const std::vector<float> x = RandomFloats(rows * 1100, random);
      std::vector<float> got = Poisoned(rows * 257), want = got;
      std::vector<uint8_t> finite(rows, 7);
      LogitsCpu(Params(head, x, got), finite.data(), pool);
      LogitsReference(Params(head, x, want), pool);
      // 1100 products of unit normals: a magnitude sum near 700, times the 150 roundings of 2^-24 of linear_test.cc.
      for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 150 * 0x1p-24 * 1100);
      for (uint8_t flag : finite) EXPECT_EQ(flag, 1);
    }
  }
}

TEST(Logits, ARowWithNaNOrInfinityIsFlaggedAndItsNeighboursAreNot) {
  std::mt19937 random(std::random_device{}());
  ThreadPool pool(2);
  const Weight head(WeightFormat::kBf16, 65, 96, random);
  std::vector<float> x = RandomFloats(4 * 96, random);
  x[96 + 7] = std::numeric_limits<float>::quiet_NaN();
  x[3 * 96 + 95] = -std::numeric_limits<float>::infinity();
  std::vector<float> logits = Poisoned(4 * 65);
  std::vector<uint8_t> finite(4, 7);
  LogitsCpu(Params(head, x, logits), finite.data(), pool);
  EXPECT_EQ(finite, (std::vector<uint8_t>{1, 0, 1, 0}));
  LogitsCpu(Params(head, x, logits), nullptr, pool);
}

}  // namespace
}  // namespace senko::ops
