// The scalar truth against ml_dtypes and numpy (tests/numerics/golden.json). The bound is equality of bits
// everywhere.
//
// Rounding to e4m3 and e2m1 is checked through the golden list of the smallest float of each code: rounding
// is monotone, so that list says what every one of the 2^32 floats becomes. The host walks all bf16 values,
// the floats around every boundary and random ones; numerics_cuda_test walks all 2^32 and compares with the
// host.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "numerics/bf16.h"
#include "numerics/quantise.h"
#include "numerics/test_blocks.h"

namespace senko::numerics {
namespace {

const Json& Golden() {
  static const Json golden = [] {
    const std::string path = std::string(SENKO_SOURCE_DIR) + "/tests/numerics/golden.json";
    std::ifstream file(path, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    return ParseJson(text, path);
  }();
  return golden;
}

std::string Hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
  return text;
}

// The values of every code; `null` is NaN.
template <typename Decode>
void CheckValues(const Json& values, size_t count, Decode decode) {
  ASSERT_EQ(values.size(), count);
  for (size_t code = 0; code < count; ++code) {
    const float got = decode(static_cast<uint8_t>(code));
    if (values[code].is_null()) {
      EXPECT_TRUE(got != got) << "code " << code;
    } else {
      EXPECT_EQ(FloatBits(got), values[code].get<uint32_t>()) << "code " << code;
    }
  }
}

TEST(Formats, EveryCodeHasItsValue) {
  CheckValues(Golden()["e4m3"]["values"], 256, E4m3ToFloat);
  CheckValues(Golden()["e2m1"]["values"], 16, E2m1ToFloat);
  CheckValues(Golden()["ue8m0"]["values"], 256, Ue8m0ToFloat);
}

// All bf16 values and their neighbours in float32, three ulps either side of every boundary, random floats.
std::vector<uint32_t> RoundingInputs(const std::vector<uint32_t>& boundaries) {
  std::vector<uint32_t> inputs;
  for (uint32_t upper = 0; upper < 65536; ++upper) {
    for (uint32_t lower : {0u, 1u, 0x7FFFu, 0x8000u, 0xFFFFu}) inputs.push_back(upper << 16 | lower);
  }
  for (uint32_t boundary : boundaries) {
    for (uint32_t step = 0; step < 7; ++step) {
      const uint32_t near = std::max(boundary + step, 3u) - 3u;
      inputs.push_back(near);
      inputs.push_back(near | 0x80000000u);
    }
  }
  const unsigned seed = std::random_device{}();
  testing::Test::RecordProperty("seed", static_cast<int>(seed));
  std::mt19937 random(seed);
  for (int i = 0; i < 4'000'000; ++i) {
    const uint32_t bits = random();
    // Half of them over all exponents, half where the formats have codes.
    inputs.push_back((i & 1) != 0 ? bits : (bits & 0x807FFFFFu) | ((112u + (bits >> 23) % 26u) << 23));
  }
  return inputs;
}

// `encode` gives the code of any float; `sign_shift` is where its sign bit lies, `nan_code` what a NaN's
// magnitude is.
template <typename Encode>
void CheckRounding(const char* format, int sign_shift, uint8_t nan_code, Encode encode) {
  const std::vector<uint32_t> first = Golden()[format]["first_bits"].get<std::vector<uint32_t>>();
  for (uint32_t bits : RoundingInputs(first)) {
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    const auto after = std::upper_bound(first.begin(), first.end(), magnitude);
    const uint32_t code = magnitude > 0x7F800000u ? nan_code : static_cast<uint32_t>(after - first.begin()) - 1;
    const uint32_t want = code | (bits >> 31) << sign_shift;
    ASSERT_EQ(encode(FloatFromBits(bits)), want) << format << " of the float " << std::hex << bits;
  }
}

TEST(Formats, E4m3RoundsAsMlDtypes) { CheckRounding("e4m3", 7, kE4m3Nan, FloatToE4m3); }
TEST(Formats, E2m1RoundsAsMlDtypes) { CheckRounding("e2m1", 3, 7, FloatToE2m1); }

TEST(Formats, EveryCodeRoundsToItself) {
  for (int i = 0; i < 256; ++i) {
    const uint8_t code = static_cast<uint8_t>(i);
    if ((i & 0x7F) != 0x7F) {
      EXPECT_EQ(FloatToE4m3(E4m3ToFloat(code)), code);
    }
    if (i < 16) {
      EXPECT_EQ(FloatToE2m1(E2m1ToFloat(code)), code);
    }
    if (i > 0 && i < 255) {
      EXPECT_EQ(Pow2CeilCode(Ue8m0ToFloat(code)), code);
    }
  }
  for (uint32_t code = 0; code < 65536; ++code) {
    const float value = Bf16ToFloat(static_cast<uint16_t>(code));
    EXPECT_EQ(FloatToBf16(value), value == value ? code : (code | 0x40u));
  }
}

TEST(Formats, Pow2CeilIsTheNextPower) {
  for (int code = 1; code < 254; ++code) {
    const uint32_t power = static_cast<uint32_t>(code) << 23;
    EXPECT_EQ(Pow2CeilCode(FloatFromBits(power)), code);
    EXPECT_EQ(Pow2CeilCode(FloatFromBits(power + 1)), code + 1);
    EXPECT_EQ(Pow2CeilCode(FloatFromBits(power - 1)), code);
    EXPECT_EQ(Pow2CeilCode(FloatFromBits(power + 0x7FFFFFu)), code + 1);
  }
  for (uint32_t bits : {0x7F000001u, 0x7F7FFFFFu, 0x7F800000u, 0x7FC00000u, 0xFFC00000u}) {
    EXPECT_EQ(Pow2CeilCode(FloatFromBits(bits)), 255) << std::hex << bits;
  }
}

TEST(Formats, Bf16RoundsAsMlDtypes) {
  uint64_t hash = kFnvStart;
  for (uint32_t upper = 0; upper < 65536; ++upper) {
    for (uint32_t lower : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      const uint32_t bits = upper << 16 | lower;
      const uint16_t code = FloatToBf16(FloatFromBits(bits));
      if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {  // NaN payloads are ours: quiet, the upper half kept
        ASSERT_EQ(code, (upper | 0x40u)) << std::hex << bits;
        continue;
      }
      const uint8_t bytes[2] = {static_cast<uint8_t>(code), static_cast<uint8_t>(code >> 8)};
      hash = Fnv(hash, bytes, 2);
    }
  }
  EXPECT_EQ(Hex(hash), Golden()["bf16"]["hash"]);
}

TEST(Quantisers, BlocksAsNumpyMakesThem) {
  const Json& golden = Golden()["blocks"];
  const uint64_t seed = golden["seed"].get<uint64_t>();
  const size_t count = golden["count"].get<size_t>();
  ASSERT_EQ(golden["kinds"].size(), static_cast<size_t>(kBlockKinds));
  for (int kind = 0; kind < kBlockKinds; ++kind) {
    std::vector<float> x(count * 32);
    std::vector<uint8_t> fp8(count * 33), fp4(count * 17), fp4_16(count * 18);  // all codes, then all scales
    for (size_t b = 0; b < count; ++b) {
      MakeBlock(kind, seed, b, &x[b * 32]);
      QuantiseFp8(&x[b * 32], &fp8[b * 32], &fp8[count * 32 + b]);
      QuantiseFp4(&x[b * 32], &fp4[b * 16], &fp4[count * 16 + b]);
      QuantiseFp4Block16(&x[b * 32], &fp4_16[b * 16], &fp4_16[count * 16 + 2 * b]);
      QuantiseFp4Block16(&x[b * 32 + 16], &fp4_16[b * 16 + 8], &fp4_16[count * 16 + 2 * b + 1]);
    }
    const Json& want = golden["kinds"][static_cast<size_t>(kind)];
    ASSERT_EQ(Hex(Fnv(kFnvStart, x.data(), x.size() * 4)), want["input"]) << "kind " << kind << ": other inputs";
    EXPECT_EQ(Hex(Fnv(kFnvStart, fp8.data(), fp8.size())), want["fp8"]) << "kind " << kind;
    EXPECT_EQ(Hex(Fnv(kFnvStart, fp4.data(), fp4.size())), want["fp4"]) << "kind " << kind;
    EXPECT_EQ(Hex(Fnv(kFnvStart, fp4_16.data(), fp4_16.size())), want["fp4_16"]) << "kind " << kind;
  }
}

TEST(Quantisers, FloorsAndClamps) {
  float x[32] = {};
  uint8_t codes[32], scale;
  QuantiseFp8(x, codes, &scale);
  EXPECT_EQ(scale, 127 - 22);  // pow2ceil(1e-4 / 448)
  QuantiseFp4(x, codes, &scale);
  EXPECT_EQ(scale, 1);  // 2^-126
  QuantiseFp4Block16(x, codes, &scale);
  EXPECT_EQ(scale, 1);  // 2^-9
  x[3] = -1e30f;
  QuantiseFp4Block16(x, codes, &scale);
  EXPECT_EQ(scale, 0x7E);     // 448
  EXPECT_EQ(codes[1], 0xF0);  // -6 in the odd element's nibble
}

// model.md 11.4: a maximum in [9, 10] x 2^-9 is stored as 8 x 2^-9, whose own scale is another.
TEST(Quantisers, SecondFp4Block16IsNotTheIdentity) {
  float x[16] = {9.5f * 0x1p-9f}, once[16], twice[16];
  uint8_t packed[8], scale, scale_again;
  QuantiseFp4Block16(x, packed, &scale);
  DequantiseFp4Block16(packed, scale, once);
  QuantiseFp4Block16(once, packed, &scale_again);
  DequantiseFp4Block16(packed, scale_again, twice);
  EXPECT_EQ(once[0], 8 * 0x1p-9f);
  EXPECT_NE(scale, scale_again);
}

// What packed KV rests on: a dequantised value is exact in bf16.
TEST(Quantisers, DequantisedValuesAreExactInBf16) {
  for (int kind = 0; kind < kBlockKinds; ++kind) {
    if (kind == kPoisoned) continue;
    for (uint64_t b = 0; b < 2000; ++b) {
      float x[32], y[32];
      uint8_t codes[32], scale;
      MakeBlock(kind, 99, b, x);
      QuantiseFp8(x, codes, &scale);
      DequantiseFp8(codes, scale, y);
      for (float v : y) ASSERT_EQ(FloatBits(RoundToBf16(v)), FloatBits(v));
      QuantiseFp4(x, codes, &scale);
      DequantiseFp4(codes, scale, y);
      for (float v : y) ASSERT_EQ(FloatBits(RoundToBf16(v)), FloatBits(v));
      QuantiseFp4Block16(x, codes, &scale);
      DequantiseFp4Block16(codes, scale, y);
      for (int i = 0; i < 16; ++i) ASSERT_EQ(FloatBits(RoundToBf16(y[i])), FloatBits(y[i]));
    }
  }
}

TEST(Quantisers, OneBadValuePoisonsTheBlock) {
  for (uint32_t bad : {0x7F800000u, 0xFF800000u, 0x7FC00000u, 0xFFC00000u, 0x7F800001u}) {
    for (int at = 0; at < 32; ++at) {
      float x[32], y[32];
      uint8_t codes[32], scale;
      for (int i = 0; i < 32; ++i) x[i] = i % 2 == 0 ? 1.0f : -1.0f;
      x[at] = FloatFromBits(bad);
      QuantiseFp8(x, codes, &scale);
      EXPECT_EQ(scale, 0xFF);
      for (int i = 0; i < 32; ++i) EXPECT_EQ(codes[i], 0x7F);
      DequantiseFp8(codes, scale, y);
      for (float v : y) EXPECT_TRUE(v != v);
      QuantiseFp4(x, codes, &scale);
      EXPECT_EQ(scale, 0xFF);
      for (int i = 0; i < 16; ++i) EXPECT_EQ(codes[i], 0x77);
      QuantiseFp4Block16(x + at / 16 * 16, codes, &scale);
      EXPECT_EQ(scale, 0x7F);
      for (int i = 0; i < 8; ++i) EXPECT_EQ(codes[i], 0x77);
      DequantiseFp4Block16(codes, scale, y);
      for (int i = 0; i < 16; ++i) EXPECT_TRUE(y[i] != y[i]);
    }
  }
}

}  // namespace
}  // namespace senko::numerics
