#include "bench/cached_prefix.h"

#include <gtest/gtest.h>

#include <vector>

namespace senko::bench {
namespace {

TEST(FitGrowth, FindsTheLine) {
  std::vector<CachedPrefixResult> results;
  for (const int64_t cached : {8192, 32768, 131072}) {
    results.push_back({cached, 640, 0.04 + 0.0004 * static_cast<double>(cached) / 1024, 0});
  }
  const CachedPrefixGrowth growth = FitGrowth(results);
  EXPECT_NEAR(growth.seconds_at_none, 0.04, 1e-12);
  EXPECT_NEAR(growth.seconds_per_1024, 0.0004, 1e-12);
  results[1].ttft_seconds += 0.01;  // no longer on it: sums of squares by hand, x = 8, 32, 128
  // Means 56 and 0.0624 + 0.01 / 3; slope = 0.0004 + (32 - 56) * 0.01 / (48^2 + 24^2 + 72^2).
  EXPECT_NEAR(FitGrowth(results).seconds_per_1024, 0.0004 - 0.24 / 8064, 1e-12);
}

TEST(FitGrowth, OneLengthGivenTwiceHasNoSlope) {
  const std::vector<CachedPrefixResult> results = {{1024, 640, 0.1, 0}, {1024, 640, 0.2, 0}};
  EXPECT_EQ(FitGrowth(results).seconds_per_1024, 0);
}

}  // namespace
}  // namespace senko::bench
