#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "numerics/bf16.h"
#include "ops/norm/norm.h"

namespace senko::ops {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Case {
  int64_t rows, cols;
  std::vector<float> x, weight;

  Case(int64_t num_rows, int64_t num_cols, uint32_t seed, float spread = 1.0f)
      : rows(num_rows), cols(num_cols), x(static_cast<size_t>(rows * cols)), weight(static_cast<size_t>(cols)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (float& value : x) value = spread * normal(random);
    for (float& value : weight) value = 1.0f + 0.3f * normal(random);
  }

  std::vector<float> Run(void (*op)(const RmsNormParams&, ThreadPool&), bool round, int threads = 2,
                         float eps = 1e-20f) const {
    std::vector<float> y(x.size(), kNan);
    ThreadPool pool(threads);
    op({rows, cols, x.data(), weight.data(), eps, y.data(), round}, pool);
    return y;
  }
};

// float32: the sum of squares has only positive terms, each lane adds at most 16 of them (1024 / 64) before a
// tree of 6 levels, and 5 chunks: a relative error below 27 * 2^-24, halved by the root; four more roundings
// follow.
constexpr double kFloatBound = (27 / 2.0 + 4) * 0x1p-24;

TEST(RmsNorm, FloatModeIsWithinTheBoundOfTheReference) {
  for (int64_t cols : {1, 7, 16, 63, 64, 128, 200, 512, 1023, 1024, 1280, 5120}) {
    for (float spread : {1.0f, 1e-15f, 1e12f}) {
      const Case c(5, cols, static_cast<uint32_t>(cols), spread);
      const auto expected = c.Run(RmsNormReference, false);
      const auto got = c.Run(RmsNormCpu, false);
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_LE(std::abs(double{got[i]} - double{expected[i]}), kFloatBound * std::abs(double{expected[i]}))
            << "cols " << cols << " spread " << spread << " element " << i;
      }
    }
  }
}

TEST(RmsNorm, ReferenceMatchesTheFormulaInLongDouble) {
  const Case c(3, 333, 91);
  const auto got = c.Run(RmsNormReference, false, 1, 1e-3f);
  for (int64_t r = 0; r < c.rows; ++r) {
    long double sum = 0;
    for (int64_t k = 0; k < c.cols; ++k) sum += std::pow(static_cast<long double>(c.x[size_t(r * c.cols + k)]), 2);
    const long double rms = std::sqrt(sum / c.cols + 1e-3f);
    for (int64_t k = 0; k < c.cols; ++k) {
      const auto want = static_cast<float>(c.weight[size_t(k)] * c.x[size_t(r * c.cols + k)] / rms);
      EXPECT_FLOAT_EQ(got[size_t(r * c.cols + k)], want);
    }
  }
}

// One final rounding: the bf16 result is the rounded float result, never rounded before the weight.
TEST(RmsNorm, RoundsOnceAtTheEnd) {
  const Case c(9, 512, 4);
  const auto exact = c.Run(RmsNormCpu, false);
  const auto rounded = c.Run(RmsNormCpu, true);
  const auto reference = c.Run(RmsNormReference, true);
  size_t differ = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    ASSERT_EQ(rounded[i], numerics::RoundToBf16(exact[i]));
    differ += rounded[i] != reference[i];
    ASSERT_LE(std::abs(rounded[i] - reference[i]), std::abs(reference[i]) * 0x1p-7f);
  }
  EXPECT_LT(differ, exact.size() / 100);  // only values on a rounding boundary
}

TEST(RmsNorm, ZeroRowsGiveZeroAndNanStaysInItsRow) {
  Case c(4, 96, 8);
  std::fill_n(c.x.begin(), 96, 0.0f);
  c.x[2 * 96 + 5] = kNan;
  for (auto op : {RmsNormReference, RmsNormCpu}) {
    const auto y = c.Run(op, true);
    for (size_t k = 0; k < 96; ++k) {
      EXPECT_EQ(y[k], 0.0f);
      EXPECT_TRUE(std::isfinite(y[96 + k]));
      EXPECT_TRUE(std::isnan(y[2 * 96 + k]));
      EXPECT_TRUE(std::isfinite(y[3 * 96 + k]));
    }
  }
}

TEST(RmsNorm, ARowsBitsDependOnNeitherBatchNorThreadsNorAliasing) {
  const Case batch(37, 1280, 12);
  const auto all = batch.Run(RmsNormCpu, true, 1);
  EXPECT_EQ(0, std::memcmp(all.data(), batch.Run(RmsNormCpu, true, 3).data(), all.size() * 4));
  Case one(1, 1280, 12);
  one.weight = batch.weight;
  std::copy_n(batch.x.begin() + 20 * 1280, 1280, one.x.begin());
  EXPECT_EQ(0, std::memcmp(all.data() + 20 * 1280, one.Run(RmsNormCpu, true).data(), 1280 * 4));
  std::vector<float> in_place = batch.x;
  ThreadPool pool(2);
  RmsNormCpu({37, 1280, in_place.data(), batch.weight.data(), 1e-20f, in_place.data(), true}, pool);
  EXPECT_EQ(0, std::memcmp(all.data(), in_place.data(), all.size() * 4));
}

}  // namespace
}  // namespace senko::ops
