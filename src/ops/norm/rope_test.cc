#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "numerics/bf16.h"
#include "numerics/bits.h"
#include "ops/each_target.h"
#include "ops/norm/norm.h"
#include "ops/norm/rope_reference.h"

namespace senko::ops {
namespace {

// The released model's tables as printed in model.md 11.2, taken there from an independent library.
constexpr std::array<uint32_t, 32> kPlainBits = {
    1065353216u, 1061157137u, 1058010522u, 1054337179u, 1050798235u, 1047712803u, 1043732615u, 1040747895u,
    1036831949u, 1033475085u, 1030116802u, 1026341397u, 1023510243u, 1019364175u, 1016180025u, 1012562930u,
    1008981770u, 1005959600u, 1001931932u, 998911607u,  995049016u,  991652109u,  988353832u,  984533390u,
    981668463u,  977573004u,  974350870u,  970790693u,  967166816u,  964208661u,  960132947u,  957076594u};
constexpr std::array<uint32_t, 32> kCompressedBits = {
    1065353216u, 1060112954u, 1056054303u, 1051098369u, 1046804782u, 1042117749u, 1037601972u, 1033169251u,
    1028443341u, 1024251131u, 1019326489u, 1015361742u, 1010249151u, 1006366088u, 1001209182u, 997081655u,
    991197921u,  985076960u,  979287478u,  973418702u,  966505391u,  959469944u,  952012877u,  943627103u,
    933484300u,  917783504u,  913828774u,  908753896u,  904558591u,  899759068u,  895336240u,  890797133u};

RopeSpec Released(bool compressed) {
  RopeSpec spec;
  spec.rope_dim = 64;
  spec.base = compressed ? 160000.0 : 10000.0;
  if (compressed) {
    spec.factor = 16;
    spec.original_max_positions = 65536;
  }
  return spec;
}

TEST(RopeInvFreq, ReproducesThePublishedBits) {
  for (bool compressed : {false, true}) {
    const auto inv_freq = RopeInvFreq(Released(compressed));
    ASSERT_EQ(inv_freq.size(), 32u);
    const auto& expected = compressed ? kCompressedBits : kPlainBits;
    for (size_t n = 0; n < 32; ++n) EXPECT_EQ(numerics::FloatBits(inv_freq[n]), expected[n]) << compressed << " " << n;
  }
}

// A small model's YaRN: rope 16, original 32. corr(32) < 0 and corr(1) = 1.09, so the ramp runs from 0 to 2.
TEST(RopeInvFreq, YarnOfASmallModel) {
  RopeSpec spec = Released(true);
  spec.rope_dim = 16;
  const auto plain = [&] {
    RopeSpec p = spec;
    p.original_max_positions = 0;
    return RopeInvFreq(p);
  }();
  spec.original_max_positions = 32;
  const auto scaled = RopeInvFreq(spec);
  ASSERT_EQ(scaled.size(), 8u);
  EXPECT_EQ(scaled[0], plain[0]);
  EXPECT_FLOAT_EQ(scaled[1], plain[1] * (0.5f + 0.5f / 16));
  for (size_t n = 2; n < 8; ++n) EXPECT_EQ(scaled[n], plain[n] / 16);
}

// low = high: the ramp is 0.001 wide, so a step.
TEST(RopeInvFreq, DegenerateRampIsAStep) {
  RopeSpec spec = Released(true);
  spec.beta_fast = spec.beta_slow = 1;
  spec.original_max_positions = 6;  // corr(1) < 0 for both: low = 0, high = ceil(-0.1) = 0
  const auto scaled = RopeInvFreq(spec);
  spec.original_max_positions = 0;
  const auto plain = RopeInvFreq(spec);
  EXPECT_EQ(scaled[0], plain[0]);
  for (size_t n = 1; n < 32; ++n) EXPECT_EQ(scaled[n], plain[n] / 16);
}

TEST(RopeTable, CosineAndSineAreCorrectlyRounded) {
  const auto inv_freq = RopeInvFreq(Released(true));
  std::mt19937_64 random(5);
  std::vector<int64_t> positions = {0, 1, 2, 65535, 65536, 1048575};
  for (int i = 0; i < 200; ++i) positions.push_back(static_cast<int64_t>(random() % 1048576));
  const auto rows = static_cast<int64_t>(positions.size());
  std::vector<float> table(positions.size() * 64, std::numeric_limits<float>::quiet_NaN());
  RopeTable(positions.data(), rows, inv_freq.data(), 32, table.data());
  for (size_t r = 0; r < positions.size(); ++r) {
    for (size_t n = 0; n < 32; ++n) {
      const float angle = static_cast<float>(positions[r]) * inv_freq[n];
      ASSERT_EQ(table[(r * 32 + n) * 2], static_cast<float>(std::cos(static_cast<long double>(angle))));
      ASSERT_EQ(table[(r * 32 + n) * 2 + 1], static_cast<float>(std::sin(static_cast<long double>(angle))));
    }
  }
}

TEST(RopeRotate, IsTheUnfusedComplexProduct) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  std::vector<float> x(80), table(80);
  for (float& value : x) value = normal(random);
  for (float& value : table) value = normal(random);
  for (size_t pairs : {0, 1, 5, 7, 8, 9, 16, 31, 32, 40}) {
    for (bool inverse : {false, true}) {
      for (bool round : {false, true}) {
        ForEachTarget([&] {
          std::vector<float> y = x;
          RopeRotate(y.data(), table.data(), static_cast<int64_t>(pairs), inverse, round);
          for (size_t n = 0; n < pairs; ++n) {
            // Volatile keeps each product a float32 of its own.
            const float c = table[2 * n], s = inverse ? -table[2 * n + 1] : table[2 * n + 1];
            volatile float ac = x[2 * n] * c, bs = x[2 * n + 1] * s, as = x[2 * n] * s, bc = x[2 * n + 1] * c;
            const float re = ac - bs, im = as + bc;
            ASSERT_EQ(y[2 * n], round ? numerics::RoundToBf16(re) : re) << pairs << " " << n;
            ASSERT_EQ(y[2 * n + 1], round ? numerics::RoundToBf16(im) : im) << pairs << " " << n;
          }
          for (size_t i = 2 * pairs; i < 80; ++i) ASSERT_EQ(y[i], x[i]);
        });
      }
    }
  }
}

// Against complex products in float64. Per component two products, together at most |x| |turn|, and a sum are
// rounded to 2^-24 each: 2 sqrt(2) 2^-24 of |x| |turn| in all; bf16 adds 2^-8.
TEST(RopeRotate, ReferenceIsTheComplexProduct) {
  std::mt19937 random(std::random_device{}());
  std::normal_distribution<float> normal;
  for (const bool inverse : {false, true}) {
    for (const bool round : {false, true}) {
      std::vector<float> x(64), table(64);
      for (float& value : x) value = normal(random);
      for (float& value : table) value = normal(random);
      std::vector<float> y = x;
      RopeRotateReference(y.data(), table.data(), 31, inverse, round);
      for (size_t n = 0; n < 31; ++n) {
        const std::complex<double> turn(table[2 * n], inverse ? -table[2 * n + 1] : table[2 * n + 1]);
        const std::complex<double> want = std::complex<double>(x[2 * n], x[2 * n + 1]) * turn;
        const double size = std::abs(want) + 1e-30, bound = ((round ? 0x1p-8 : 0) + 0x1p-22) * size;
        EXPECT_LE(std::abs(std::complex<double>(y[2 * n], y[2 * n + 1]) - want), bound) << n;
      }
      EXPECT_EQ(y[62], x[62]);
      EXPECT_EQ(y[63], x[63]);
    }
  }
}

TEST(RopeRotate, InverseUndoesForward) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> x(64), table(64);
  for (float& value : x) value = normal(random);
  const int64_t position = 99999;
  const auto inv_freq = RopeInvFreq(Released(true));
  RopeTable(&position, 1, inv_freq.data(), 32, table.data());
  std::vector<float> y = x;
  RopeRotate(y.data(), table.data(), 32, false, false);
  EXPECT_NE(y, x);
  RopeRotate(y.data(), table.data(), 32, true, false);
  for (size_t i = 0; i < 64; ++i) EXPECT_NEAR(y[i], x[i], 1e-6f);
}

}  // namespace
}  // namespace senko::ops
