// F32x16 on every target this machine runs: against scalar arithmetic, and AVX2 against AVX-512 bit for bit.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "numerics/simd/lanes_test.cc"
#include "hwy/foreach_target.h"
#include "numerics/bf16.h"
#include "numerics/simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace senko::numerics::HWY_NAMESPACE {
namespace {

// in: 64-byte aligned floats a[16], b[16], c[16]. out: results of each function, 16 floats apiece.
void Probe(const float* in, float* out) {
  const F32x16 a = Load16(in), b = LoadU16(in + 16), c = Load16(in + 32);
  StoreU16(Add(a, b), out);
  StoreU16(Sub(a, b), out + 16);
  StoreU16(Mul(a, b), out + 32);
  StoreU16(Div(a, b), out + 48);
  StoreU16(MulAdd(a, b, c), out + 64);
  StoreU16(Max(a, b), out + 80);
  StoreU16(Min(a, b), out + 96);
  StoreU16(RoundToBf16(a), out + 112);
  StoreU16(Add(Set16(in[0]), Zero16()), out + 128);
  StoreU16(LoadN16(in, 5), out + 144);
  StoreU16(Zero16(), out + 160);
  StoreN16(a, out + 160, 3);
  StoreU16(LoadBf16x16(reinterpret_cast<const char*>(in) + 1), out + 176);
  out[192] = ReduceSum(a);
  out[193] = ReduceMax(a);
  StoreU16(LoadStored16(reinterpret_cast<const char*>(in) + 1), out + 202);
  const F32x16 four[4] = {a, b, c, Add(a, b)};
  ReduceSum4(four, out + 194);
  for (int i = 0; i < 4; ++i) out[198 + i] = ReduceSum(four[i]);
}

}  // namespace
}  // namespace senko::numerics::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace senko::numerics {
namespace {

HWY_EXPORT(Probe);

constexpr int kOut = 218;

void RunTarget(int64_t target, const float* in, float* out) {
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  for (int i = 0; i < kOut; ++i) out[i] = std::numeric_limits<float>::quiet_NaN();
  HWY_DYNAMIC_DISPATCH(Probe)(in, out);
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

TEST(Lanes, AgreeWithScalarArithmeticOnEveryTarget) {
  std::mt19937 random(std::random_device{}());
  std::normal_distribution<float> normal;
  for (int trial = 0; trial < 200; ++trial) {
    alignas(64) float in[64];
    for (float& x : in) x = normal(random) * std::exp2f(static_cast<float>(static_cast<int>(random() % 41) - 20));
    std::map<int64_t, std::vector<float>> results;
    for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
      SCOPED_TRACE(hwy::TargetName(target));
      std::vector<float>& out = results[target];
      out.resize(kOut);
      RunTarget(target, in, out.data());
      const float *a = in, *b = in + 16, *c = in + 32;
      for (int i = 0; i < 16; ++i) {
        EXPECT_EQ(out[i], a[i] + b[i]);
        EXPECT_EQ(out[16 + i], a[i] - b[i]);
        EXPECT_EQ(out[32 + i], a[i] * b[i]);
        EXPECT_EQ(out[48 + i], a[i] / b[i]);
        const bool fused = target != HWY_SCALAR && target != HWY_EMU128;
        EXPECT_EQ(out[64 + i], fused ? std::fma(a[i], b[i], c[i]) : a[i] * b[i] + c[i]);
        EXPECT_EQ(out[80 + i], std::max(a[i], b[i]));
        EXPECT_EQ(out[96 + i], std::min(a[i], b[i]));
        EXPECT_EQ(out[112 + i], RoundToBf16(a[i]));
        EXPECT_EQ(out[128 + i], in[0]);
        EXPECT_EQ(out[144 + i], i < 5 ? a[i] : 0.0f);
        EXPECT_EQ(out[160 + i], i < 3 ? a[i] : 0.0f);
        uint16_t code;
        std::memcpy(&code, reinterpret_cast<const char*>(in) + 1 + 2 * i, 2);
        EXPECT_EQ(FloatBits(out[176 + i]), static_cast<uint32_t>(code) << 16);
      }
      float t[16];
      std::memcpy(t, a, sizeof(t));
      for (int width = 8; width > 0; width /= 2) {
        for (int i = 0; i < width; ++i) t[i] += t[i + width];
      }
      EXPECT_EQ(out[192], t[0]);
      EXPECT_EQ(out[193], *std::max_element(a, a + 16));
      for (int i = 0; i < 4; ++i) EXPECT_EQ(out[194 + i], out[198 + i]);
      EXPECT_EQ(0, std::memcmp(out.data() + 202, reinterpret_cast<const char*>(in) + 1, 64));
    }
    if (results.count(HWY_AVX2) != 0 && results.count(HWY_AVX3) != 0) {
      EXPECT_EQ(0, std::memcmp(results[HWY_AVX2].data(), results[HWY_AVX3].data(), kOut * sizeof(float)));
    }
  }
}

TEST(Lanes, RoundToBf16KeepsSpecialValues) {
  alignas(64) float in[64] = {};
  const uint32_t special[16] = {0x00000000u, 0x80000000u, 0x7F800000u, 0xFF800000u, 0x7F800001u, 0xFFFFFFFFu,
                                0x7F7FFFFFu, 0x00000001u, 0x00008000u, 0x00018000u, 0x3F808000u, 0x3F818000u,
                                0x3F808001u, 0x7FC00000u, 0x80008001u, 0x807FFFFFu};
  std::memcpy(in, special, sizeof(special));
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    std::vector<float> out(kOut);
    RunTarget(target, in, out.data());
    for (int i = 0; i < 16; ++i) {
      EXPECT_EQ(FloatBits(out[112 + i]), FloatBits(RoundToBf16(FloatFromBits(special[i])))) << std::hex << special[i];
    }
  }
}

}  // namespace
}  // namespace senko::numerics
#endif  // HWY_ONCE
