// The rows against the scalar truth, on every SIMD target this machine has. The bound is equality of bits; a
// NaN that a dequantisation returns need only be a NaN. Outputs are poisoned before each call and guarded at
// both ends.
#include "numerics/row_quantise.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstring>
#include <string>
#include <vector>

#include "numerics/bf16.h"
#include "numerics/quantise.h"
#include "numerics/test_blocks.h"

namespace senko::numerics {
namespace {

constexpr int kGuard = 16;

// An output buffer filled with a pattern, whose ends must still hold it afterwards.
template <typename T>
class Guarded {
 public:
  explicit Guarded(int64_t n) : n_(n), data_(static_cast<size_t>(n + 2 * kGuard)) {
    std::memset(data_.data(), 0xFF, data_.size() * sizeof(T));  // as a float: NaN
  }
  T* get() { return data_.data() + kGuard; }
  T operator[](int64_t i) const { return data_[static_cast<size_t>(i + kGuard)]; }
  bool Intact() const {
    T pattern;
    std::memset(&pattern, 0xFF, sizeof(T));
    for (int i = 0; i < kGuard; ++i) {
      if (std::memcmp(&data_[static_cast<size_t>(i)], &pattern, sizeof(T)) != 0) return false;
      if (std::memcmp(&data_[static_cast<size_t>(n_ + kGuard + i)], &pattern, sizeof(T)) != 0) return false;
    }
    return true;
  }

 private:
  int64_t n_;
  std::vector<T> data_;
};

testing::AssertionResult SameFloat(float got, float want) {
  if (FloatBits(got) == FloatBits(want)) return testing::AssertionSuccess();
  if (got != got && want != want) return testing::AssertionSuccess();
  return testing::AssertionFailure() << std::hex << FloatBits(got) << " is not " << FloatBits(want);
}

class RowQuantise : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    hwy::SetSupportedTargetsForTest(GetParam());
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  void TearDown() override {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
  }
};

// Rows of 1 to 7 blocks of one kind, one element off any alignment.
struct Row {
  std::vector<float> storage;
  const float* x;
  int64_t n;
};
Row MakeRow(int kind, uint64_t seed, uint64_t row) {
  Row r;
  r.n = static_cast<int64_t>(32 * (1 + row % 7));
  r.storage.resize(static_cast<size_t>(r.n + 1));
  for (int64_t b = 0; b < r.n / 32; ++b) {
    MakeBlock(kind, seed, row * 8 + static_cast<uint64_t>(b), r.storage.data() + 1 + 32 * b);
  }
  r.x = r.storage.data() + 1;
  return r;
}

constexpr uint64_t kRows = 400;

TEST_P(RowQuantise, Fp8MatchesScalar) {
  for (int kind = 0; kind < kBlockKinds; ++kind) {
    for (uint64_t row = 0; row < kRows; ++row) {
      const Row r = MakeRow(kind, 11, row);
      Guarded<uint8_t> codes(r.n), scales(r.n / 32);
      Guarded<float> back(r.n), qdq(r.n), qdq_rounded(r.n);
      QuantiseFp8Row(r.x, r.n, codes.get(), scales.get());
      DequantiseFp8Row(codes.get(), scales.get(), r.n, back.get());
      QdqFp8Row(r.x, r.n, qdq.get(), false);
      QdqFp8Row(r.x, r.n, qdq_rounded.get(), true);
      ASSERT_TRUE(codes.Intact() && scales.Intact() && back.Intact() && qdq.Intact() && qdq_rounded.Intact());
      for (int64_t b = 0; b < r.n / 32; ++b) {
        uint8_t want[32], scale;
        float value[32], rounded[32], value_rounded[32];
        QuantiseFp8(r.x + 32 * b, want, &scale);
        DequantiseFp8(want, scale, value);
        ASSERT_EQ(scales[b], scale) << "kind " << kind << " row " << row << " block " << b;
        for (int i = 0; i < 32; ++i) {
          ASSERT_EQ(codes[32 * b + i], want[i]) << "kind " << kind << " row " << row << " at " << 32 * b + i;
          ASSERT_TRUE(SameFloat(back[32 * b + i], value[i])) << "kind " << kind << " row " << row;
          ASSERT_TRUE(SameFloat(qdq[32 * b + i], value[i])) << "kind " << kind << " row " << row;
          rounded[i] = RoundToBf16(r.x[32 * b + i]);
        }
        QuantiseFp8(rounded, want, &scale);
        DequantiseFp8(want, scale, value_rounded);
        for (int i = 0; i < 32; ++i) ASSERT_TRUE(SameFloat(qdq_rounded[32 * b + i], value_rounded[i]));
      }
    }
  }
}

TEST_P(RowQuantise, Fp4MatchesScalar) {
  for (int kind = 0; kind < kBlockKinds; ++kind) {
    for (uint64_t row = 0; row < kRows; ++row) {
      const Row r = MakeRow(kind, 12, row);
      Guarded<uint8_t> packed(r.n / 2), scales(r.n / 32);
      Guarded<float> back(r.n);
      QuantiseFp4Row(r.x, r.n, packed.get(), scales.get());
      DequantiseFp4Row(packed.get(), scales.get(), r.n, back.get());
      ASSERT_TRUE(packed.Intact() && scales.Intact() && back.Intact());
      for (int64_t b = 0; b < r.n / 32; ++b) {
        uint8_t want[16], scale;
        float value[32];
        QuantiseFp4(r.x + 32 * b, want, &scale);
        DequantiseFp4(want, scale, value);
        ASSERT_EQ(scales[b], scale) << "kind " << kind << " row " << row << " block " << b;
        for (int i = 0; i < 16; ++i) ASSERT_EQ(packed[16 * b + i], want[i]) << "kind " << kind << " row " << row;
        for (int i = 0; i < 32; ++i) ASSERT_TRUE(SameFloat(back[32 * b + i], value[i])) << "kind " << kind;
      }
    }
  }
}

TEST_P(RowQuantise, Fp4Block16MatchesScalar) {
  for (int kind = 0; kind < kBlockKinds; ++kind) {
    for (uint64_t row = 0; row < kRows; ++row) {
      const Row r = MakeRow(kind, 13, row);
      const int64_t n = r.n - 16 * static_cast<int64_t>(row % 2);  // whole blocks of 16, not always of 32
      Guarded<uint8_t> packed(n / 2), scales(n / 16);
      Guarded<float> back(n);
      QuantiseFp4Block16Row(r.x, n, packed.get(), scales.get());
      DequantiseFp4Block16Row(packed.get(), scales.get(), n, back.get());
      ASSERT_TRUE(packed.Intact() && scales.Intact() && back.Intact());
      for (int64_t b = 0; b < n / 16; ++b) {
        uint8_t want[8], scale;
        float value[16];
        QuantiseFp4Block16(r.x + 16 * b, want, &scale);
        DequantiseFp4Block16(want, scale, value);
        ASSERT_EQ(scales[b], scale) << "kind " << kind << " row " << row << " block " << b;
        for (int i = 0; i < 8; ++i) ASSERT_EQ(packed[8 * b + i], want[i]) << "kind " << kind << " row " << row;
        for (int i = 0; i < 16; ++i) ASSERT_TRUE(SameFloat(back[16 * b + i], value[i])) << "kind " << kind;
      }
    }
  }
}

// Every code under every scale: 256 x 256 for FP8 and both FP4 formats.
TEST_P(RowQuantise, EveryCodeUnderEveryScale) {
  std::vector<uint8_t> codes(256);
  for (int i = 0; i < 256; ++i) codes[static_cast<size_t>(i)] = static_cast<uint8_t>(i);
  for (int scale = 0; scale < 256; ++scale) {
    const std::vector<uint8_t> scales(32, static_cast<uint8_t>(scale));
    Guarded<float> fp8(256), fp4(512), fp4_16(512);
    DequantiseFp8Row(codes.data(), scales.data(), 256, fp8.get());
    DequantiseFp4Row(codes.data(), scales.data(), 512, fp4.get());
    DequantiseFp4Block16Row(codes.data(), scales.data(), 512, fp4_16.get());
    const float ue8m0 = Ue8m0ToFloat(static_cast<uint8_t>(scale)), e4m3 = E4m3ToFloat(static_cast<uint8_t>(scale));
    for (int i = 0; i < 256; ++i) {
      ASSERT_TRUE(SameFloat(fp8[i], E4m3ToFloat(static_cast<uint8_t>(i)) * ue8m0)) << i << " scale " << scale;
      const float low = E2m1ToFloat(static_cast<uint8_t>(i & 15)), high = E2m1ToFloat(static_cast<uint8_t>(i >> 4));
      ASSERT_TRUE(SameFloat(fp4[2 * i], low * ue8m0)) << i << " scale " << scale;
      ASSERT_TRUE(SameFloat(fp4[2 * i + 1], high * ue8m0)) << i << " scale " << scale;
      ASSERT_TRUE(SameFloat(fp4_16[2 * i], low * e4m3)) << i << " scale " << scale;
      ASSERT_TRUE(SameFloat(fp4_16[2 * i + 1], high * e4m3)) << i << " scale " << scale;
    }
  }
}

// bf16: every upper half with lower halves at and around the tie, NaN payloads included; odd lengths and
// tails.
TEST_P(RowQuantise, Bf16MatchesScalar) {
  std::vector<float> x;
  for (uint32_t upper = 0; upper < 65536; ++upper) {
    for (uint32_t lower : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) x.push_back(FloatFromBits(upper << 16 | lower));
  }
  const int64_t n = static_cast<int64_t>(x.size());
  Guarded<float> rounded(n);
  Guarded<uint16_t> codes(n);
  RoundBf16Row(x.data(), n, rounded.get());
  FloatToBf16Row(x.data(), n, codes.get());
  ASSERT_TRUE(rounded.Intact() && codes.Intact());
  Guarded<float> back(n);
  Bf16ToFloatRow(codes.get(), n, back.get());
  ASSERT_TRUE(back.Intact());
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t want = FloatToBf16(x[static_cast<size_t>(i)]);
    ASSERT_EQ(codes[i], want) << std::hex << FloatBits(x[static_cast<size_t>(i)]);
    ASSERT_EQ(FloatBits(rounded[i]), uint32_t{want} << 16);
    ASSERT_EQ(FloatBits(back[i]), uint32_t{want} << 16);
  }
  for (int64_t length = 0; length < 70; ++length) {
    Guarded<float> y(length), z(length);
    Guarded<uint16_t> c(length);
    const float* from = x.data() + 100001 + length;
    RoundBf16Row(from, length, y.get());
    FloatToBf16Row(from, length, c.get());
    Bf16ToFloatRow(c.get(), length, z.get());
    ASSERT_TRUE(y.Intact() && z.Intact() && c.Intact()) << length;
    for (int64_t i = 0; i < length; ++i) {
      ASSERT_EQ(c[i], FloatToBf16(from[i]));
      ASSERT_EQ(FloatBits(y[i]), FloatBits(RoundToBf16(from[i])));
      ASSERT_EQ(FloatBits(z[i]), FloatBits(RoundToBf16(from[i])));
    }
  }
}

TEST_P(RowQuantise, InPlaceEqualsOutOfPlace) {
  for (bool round_first : {false, true}) {
    Row r = MakeRow(kUniform, 14, 6);
    std::vector<float> apart(static_cast<size_t>(r.n)), rounded(static_cast<size_t>(r.n));
    QdqFp8Row(r.x, r.n, apart.data(), round_first);
    RoundBf16Row(r.x, r.n, rounded.data());
    std::vector<float> in_place(r.x, r.x + r.n), round_in_place(r.x, r.x + r.n);
    QdqFp8Row(in_place.data(), r.n, in_place.data(), round_first);
    RoundBf16Row(round_in_place.data(), r.n, round_in_place.data());
    EXPECT_EQ(in_place, apart);
    EXPECT_EQ(round_in_place, rounded);
  }
}

TEST_P(RowQuantise, PartialBlocksAreOurFault) {
  float x[33] = {};
  uint8_t codes[33], scales[3];
  EXPECT_THROW(QuantiseFp8Row(x, 33, codes, scales), std::logic_error);
  EXPECT_THROW(QuantiseFp4Row(x, 16, codes, scales), std::logic_error);
  EXPECT_THROW(QuantiseFp4Block16Row(x, 8, codes, scales), std::logic_error);
  EXPECT_THROW(QdqFp8Row(x, -32, x, true), std::logic_error);
  QuantiseFp8Row(x, 0, codes, scales);  // an empty row is a row
}

INSTANTIATE_TEST_SUITE_P(Target, RowQuantise, testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const testing::TestParamInfo<int64_t>& target) {
                           return std::string(hwy::TargetName(target.param));
                         });

}  // namespace
}  // namespace senko::numerics
