// Exp and Silu against double arithmetic on every target; AVX2 and AVX-512 bit for bit.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "numerics/simd/math_test.cc"
#include "hwy/foreach_target.h"
#include "numerics/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace senko::numerics::HWY_NAMESPACE {
namespace {

void ExpRow(const float* x, float* y, size_t n) {
  for (size_t i = 0; i < n; i += 16) StoreU16(Exp(LoadU16(x + i)), y + i);
}
void SiluRow(const float* x, float* y, size_t n) {
  for (size_t i = 0; i < n; i += 16) StoreU16(Silu(LoadU16(x + i)), y + i);
}

}  // namespace
}  // namespace senko::numerics::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "numerics/bits.h"

namespace senko::numerics {
namespace {

HWY_EXPORT(ExpRow);
HWY_EXPORT(SiluRow);

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

void Choose(int64_t target) {
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// |got - want| in units of the last place of want's float.
double Ulps(float got, double want) {
  const float rounded = static_cast<float>(want);
  const double ulp = static_cast<double>(std::nextafter(std::fabs(rounded), kInf)) - std::fabs(rounded);
  return std::fabs(got - want) / ulp;
}

std::vector<float> Inputs() {
  std::mt19937 random(std::random_device{}());
  std::uniform_real_distribution<float> wide(-87.3f, 88.7f), near(-1.0f, 1.0f);
  std::vector<float> x;
  for (int i = 0; i < 200000; ++i) x.push_back(i % 4 == 0 ? near(random) : wide(random));
  for (float v : {0.0f, -0.0f, 1e-30f, -1e-30f, 88.72283f, -87.33654f, 0.34657359f, -0.34657359f}) x.push_back(v);
  while (x.size() % 16 != 0) x.push_back(0.0f);
  return x;
}

TEST(SimdMath, ExpIsWithinItsBound) {
  const std::vector<float> x = Inputs();
  std::vector<float> avx2, avx3;
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    Choose(target);
    std::vector<float> y(x.size(), kNaN);
    HWY_DYNAMIC_DISPATCH(ExpRow)(x.data(), y.data(), x.size());
    const double bound = target == HWY_SCALAR ? 3.0 : 2.0;
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double ulps = Ulps(y[i], std::exp(static_cast<double>(x[i])));
      ASSERT_LE(ulps, bound) << x[i] << " " << y[i];
      worst = std::max(worst, ulps);
    }
    RecordProperty(hwy::TargetName(target), std::to_string(worst));
    if (target == HWY_AVX2) avx2 = y;
    if (target == HWY_AVX3) avx3 = y;
    Choose(0);
  }
  if (!avx2.empty() && !avx3.empty()) {
    EXPECT_EQ(0, std::memcmp(avx2.data(), avx3.data(), x.size() * sizeof(float)));
  }
}

TEST(SimdMath, ExpOfSpecialValues) {
  const float x[16] = {kInf, -kInf, kNaN,   88.8f,   1000.0f, -87.5f,   -1000.0f, 88.722839f,
                       0.0f, -0.0f, 1e-45f, -1e-45f, 3.4e38f, -3.4e38f, -103.0f,  88.0f};
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    Choose(target);
    float y[16];
    HWY_DYNAMIC_DISPATCH(ExpRow)(x, y, 16);
    EXPECT_EQ(y[0], kInf);
    EXPECT_EQ(y[1], 0.0f);
    EXPECT_TRUE(std::isnan(y[2]));
    for (int i : {3, 4, 12}) EXPECT_EQ(y[i], kInf) << i;
    for (int i : {5, 6, 13, 14}) EXPECT_EQ(y[i], 0.0f) << i;
    for (int i : {8, 9, 10, 11}) EXPECT_EQ(y[i], 1.0f) << i;
    EXPECT_GT(y[7], 3.4e38f);
    Choose(0);
  }
}

// silu adds one addition and one division to Exp's error, and where e^-x dominates inherits it whole.
TEST(SimdMath, SiluIsWithinItsBound) {
  const std::vector<float> x = Inputs();
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    Choose(target);
    std::vector<float> y(x.size(), kNaN);
    HWY_DYNAMIC_DISPATCH(SiluRow)(x.data(), y.data(), x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const double d = x[i], want = d / (1.0 + std::exp(-d));
      if (std::fabs(want) < std::numeric_limits<float>::min()) continue;
      ASSERT_LE(Ulps(y[i], want), 5.0) << x[i];
    }
    Choose(0);
  }
}

}  // namespace
}  // namespace senko::numerics
#endif  // HWY_ONCE
