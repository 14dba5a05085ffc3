#include "checkpoint/random_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/ue8m0.h"

namespace senko::checkpoint {
namespace {

std::vector<uint8_t> Fill(const ExpectedTensor& tensor, uint64_t seed) {
  std::vector<uint8_t> bytes(static_cast<size_t>(BytesOf(tensor)));
  FillRandom(tensor, seed, 0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

ExpectedTensor Make(const std::string& name, DType dtype, std::vector<int64_t> shape, TensorRole role, int64_t fan_in) {
  return {name, dtype, std::move(shape), TensorGroup::kAttention, role, fan_in, {}};
}

TEST(RandomWeights, DoNotDependOnTheCut) {
  std::mt19937 random(std::random_device{}());
  for (TensorRole role :
       {TensorRole::kFp8Weight, TensorRole::kFp4Scale, TensorRole::kBf16Weight, TensorRole::kMixFunction}) {
    const DType dtype = role == TensorRole::kBf16Weight    ? DType::kBF16
                        : role == TensorRole::kMixFunction ? DType::kF32
                                                           : DType::kU8;
    const ExpectedTensor tensor = Make("t", dtype, {1000, 37}, role, 300);
    const std::vector<uint8_t> whole = Fill(tensor, 5);
    std::vector<uint8_t> pieces(whole.size());
    for (size_t at = 0; at < pieces.size();) {
      const size_t size = std::min(pieces.size() - at, kFillUnit * (1 + random() % 40));
      FillRandom(tensor, 5, at, std::as_writable_bytes(std::span(pieces)).subspan(at, size));
      at += size;
    }
    EXPECT_EQ(whole, pieces);
    EXPECT_NE(whole, Fill(tensor, 6));
  }
}

// First bytes as computed by an independent program (Python integers): what "the same on every machine"
// means.
TEST(RandomWeights, AreTheDocumentedBytes) {
  const auto hex = [](const ExpectedTensor& tensor) {
    std::string text;
    for (uint8_t byte : Fill(tensor, 42)) {
      const char* digits = "0123456789abcdef";
      text += digits[byte >> 4];
      text += digits[byte & 15];
    }
    return text;
  };
  EXPECT_EQ(hex(Make("a.weight", DType::kF8E4M3, {16}, TensorRole::kFp8Weight, 256)),
            "71e86beee36ef265e7626aecea58f3f0");
  EXPECT_EQ(hex(Make("a.scale", DType::kF8E8M0, {16}, TensorRole::kFp8Scale, 1280)),
            "73727373737372737273737373727373");
  EXPECT_EQ(hex(Make("b.scale", DType::kF8E8M0, {16}, TensorRole::kFp4Scale, 5120)),
            "77767776777776777777777776787778");
  EXPECT_EQ(hex(Make("c.weight", DType::kBF16, {8}, TensorRole::kBf16Weight, 5120)),
            "df3b0e3cd63b24bd1c3c0ebcccbc703c");
  EXPECT_EQ(hex(Make("d", DType::kF32, {4}, TensorRole::kMixFunction, 20480)), "e0bfe3bab84005bb482ecbbbe06d313b");
}

TEST(RandomWeights, InverseSqrtIsTheLargestNotAbove) {
  for (int64_t n : {1, 2, 3, 4, 64, 97, 256, 588, 1280, 5120, 20480, 4194304}) {
    const double value = InverseSqrt(n), truth = 1.0 / std::sqrt(static_cast<double>(n));
    EXPECT_LE(value, truth);
    EXPECT_GT(value, truth * (1 - 1.0 / 128));
  }
}

// Weights times unit inputs keep unit size: root mean square of w is 1/sqrt(fan_in). The draws' own error is
// under 1% (at least 4,000 blocks of two or three sizes); the tables are within 1%; together under 4%.
TEST(RandomWeights, LinearsKeepUnitScale) {
  for (int64_t in : {64, 96, 256, 1024, 1280, 2304, 5120}) {
    const int64_t out = 4096;
    const auto fp8 = Fill(Make("w.weight", DType::kF8E4M3, {out, in}, TensorRole::kFp8Weight, in), 7);
    const auto scale8 = Fill(Make("w.scale", DType::kF8E8M0, {out / 32, in / 32}, TensorRole::kFp8Scale, in), 7);
    double sum8 = 0;
    for (int64_t r = 0; r < out; ++r) {
      for (int64_t c = 0; c < in; ++c) {
        const double s = numerics::Ue8m0ToFloat(scale8[static_cast<size_t>(r / 32 * (in / 32) + c / 32)]);
        const double w = s * numerics::E4m3ToFloat(fp8[static_cast<size_t>(r * in + c)]);
        sum8 += w * w;
      }
    }
    // Few tiles for small inputs: the mix of exponents is judged with the tolerance of its own sample.
    const double tiles = static_cast<double>(scale8.size());
    EXPECT_NEAR(std::sqrt(sum8 / static_cast<double>(out)), 1.0, 0.04 + 3.0 * 0.5 / std::sqrt(tiles)) << in;

    const auto fp4 = Fill(Make("e.weight", DType::kI8, {out, in / 2}, TensorRole::kFp4Weight, in), 7);
    const auto scale4 = Fill(Make("e.scale", DType::kF8E8M0, {out, in / 32}, TensorRole::kFp4Scale, in), 7);
    double sum4 = 0;
    for (size_t i = 0; i < fp4.size(); ++i) {
      const double s = numerics::Ue8m0ToFloat(scale4[i / 16]);
      const double low = s * numerics::E2m1ToFloat(fp4[i] & 15), high = s * numerics::E2m1ToFloat(fp4[i] >> 4);
      sum4 += low * low + high * high;
    }
    EXPECT_NEAR(std::sqrt(sum4 / static_cast<double>(out)), 1.0, 0.04) << in;

    const auto bf16 = Fill(Make("b.weight", DType::kBF16, {out, in}, TensorRole::kBf16Weight, in), 7);
    double sum16 = 0;
    for (size_t i = 0; i < bf16.size(); i += 2) {
      const double w = numerics::Bf16ToFloat(static_cast<uint16_t>(bf16[i] | (bf16[i + 1] << 8)));
      sum16 += w * w;
    }
    EXPECT_NEAR(std::sqrt(sum16 / static_cast<double>(out)), 1.0, 0.04) << in;
  }
}

}  // namespace
}  // namespace senko::checkpoint
