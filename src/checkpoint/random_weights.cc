#include "checkpoint/random_weights.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "base/random.h"
#include "numerics/bf16.h"
#include "numerics/e4m3.h"

namespace senko::checkpoint {
namespace {

// Magnitudes of 128 equally likely slices of a normal distribution, in 1/32 of its deviation. The mean square
// is 0.999 * 32 * 32.
constexpr std::array<uint8_t, 128> kHalfNormal = {
    0,  0,  1,  1,  1,  2,  2,  2,  3,  3,  3,  4,  4,  4,  5,  5,  5,  6,  6,  6,  6,  7,  7,  7,  8,  8,
    8,  9,  9,  9,  10, 10, 10, 11, 11, 11, 12, 12, 12, 13, 13, 13, 14, 14, 14, 15, 15, 15, 16, 16, 17, 17,
    17, 18, 18, 18, 19, 19, 19, 20, 20, 21, 21, 21, 22, 22, 23, 23, 23, 24, 24, 25, 25, 25, 26, 26, 27, 27,
    28, 28, 29, 29, 30, 30, 31, 31, 32, 32, 33, 33, 34, 34, 35, 35, 36, 37, 37, 38, 38, 39, 40, 40, 41, 42,
    43, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 56, 57, 59, 61, 63, 65, 67, 71, 75, 81, 92};

// Uniform bytes. Sixteen per Philox counter; eight counters side by side so that the compiler can use
// vectors.
void FillUniform(uint64_t key, uint64_t offset, std::span<std::byte> out) {
  constexpr size_t kLanes = 8;
  uint64_t counter = offset / 16;
  for (size_t at = 0; at < out.size(); at += 16 * kLanes, counter += kLanes) {
    Philox draws[kLanes];
    for (size_t lane = 0; lane < kLanes; ++lane) draws[lane] = PhiloxDraw(key, counter + lane, 0);
    std::memcpy(out.data() + at, draws, std::min(out.size() - at, sizeof(draws)));
  }
}

// Codes of a normal of deviation 128: the largest magnitude, 368, stays inside e4m3's range.
const std::array<uint8_t, 256>& Fp8Codes() {
  static const std::array<uint8_t, 256> codes = [] {
    std::array<uint8_t, 256> table{};
    for (size_t i = 0; i < 256; ++i) {
      const float magnitude = 4.0f * kHalfNormal[i & 127];
      table[i] = numerics::FloatToE4m3(i < 128 ? magnitude : -magnitude);
    }
    return table;
  }();
  return codes;
}

// Block scales around 2^e with three neighbouring exponents, mixed so that the mean square of scale * code is
// 1/n. Codes have mean square numerator/denominator * 2^shift.
std::array<uint8_t, 256> ScaleCodes(int64_t n, int64_t numerator, int64_t denominator, int shift) {
  // x = 2^k / (n * numerator / denominator), k even, lies in [0.75, 3).
  int k = 0;
  const auto wide = [](int64_t value) { return static_cast<double>(value); };
  const double target = wide(n) * wide(numerator) / wide(denominator);
  double power = 1.0;
  for (; 4.0 * power < 3.0 * target; k += 2) power *= 4.0;
  const double x = power / target;
  // A quarter of the blocks is one step lower; p of them are one step higher: 1 + 3p - 0.75 / 4 = x.
  const int higher = std::max(0, static_cast<int>(256.0 * (x - 0.8125) / 3.0));
  const int code = 127 - (k + shift) / 2;
  std::array<uint8_t, 256> table{};
  for (int i = 0; i < 256; ++i) {
    table[static_cast<size_t>(i)] = static_cast<uint8_t>(i < higher ? code + 1 : i >= 192 ? code - 1 : code);
  }
  return table;
}

void MapBytes(const std::array<uint8_t, 256>& table, std::span<std::byte> bytes) {
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(table[static_cast<size_t>(byte)]);
}

// Replaces each pair of random bytes by a bf16: center + deviation * normal, rounded once.
void MapBf16(float center, float deviation, std::span<std::byte> bytes) {
  std::array<uint16_t, 2048> table;  // 7 bits pick a slice, 1 the sign, 3 a place inside the slice
  for (size_t i = 0; i < table.size(); ++i) {
    const float magnitude = static_cast<float>(kHalfNormal[i & 127] * 8 + static_cast<int>(i >> 8)) * 0x1p-8f;
    const float normal = (i & 128) != 0 ? -magnitude : magnitude;
    table[i] = numerics::FloatToBf16(center + deviation * normal);
  }
  for (size_t at = 0; at + 2 <= bytes.size(); at += 2) {
    uint16_t draw;
    std::memcpy(&draw, &bytes[at], 2);
    std::memcpy(&bytes[at], &table[draw & 2047], 2);
  }
}

void MapF32(float center, float deviation, std::span<std::byte> bytes) {
  for (size_t at = 0; at + 4 <= bytes.size(); at += 4) {
    uint32_t draw;
    std::memcpy(&draw, &bytes[at], 4);
    const uint32_t magnitude = (uint32_t{kHalfNormal[draw & 127]} << 13) | ((draw >> 8) & 0x1FFFu);  // below 2^20
    const float scaled = deviation * (static_cast<float>(magnitude) * 0x1p-18f);
    const float value = center + ((draw & 128) != 0 ? -scaled : scaled);
    std::memcpy(&bytes[at], &value, 4);
  }
}

}  // namespace

float InverseSqrt(int64_t n) {
  SENKO_CHECK(n > 0);
  const double value = static_cast<double>(n);
  double step = 1.0;  // 2^-e; the squares below are exact: 16 bits times a power of two
  while (128.0 * 128.0 * step * step * value > 1.0) step *= 0.5;
  int m = 128;
  while (m < 255 && (m + 1.0) * (m + 1.0) * step * step * value <= 1.0) ++m;
  return static_cast<float>(m * step);
}

uint64_t NameKey(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325u ^ (seed * 0x9E3779B97F4A7C15u);  // FNV-1a, then a finaliser
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  hash = (hash ^ (hash >> 33)) * 0xFF51AFD7ED558CCDu;
  return hash ^ (hash >> 29);
}

void FillRandom(const ExpectedTensor& tensor, uint64_t seed, uint64_t offset, std::span<std::byte> out) {
  SENKO_CHECK(offset % kFillUnit == 0);
  FillUniform(NameKey(seed, tensor.name), offset, out);
  const float inverse_sqrt = InverseSqrt(tensor.fan_in);
  switch (tensor.role) {
    case TensorRole::kFp8Weight:
    case TensorRole::kTable:
      return MapBytes(Fp8Codes(), out);
    // All sixteen e2m1 codes alike (mean square 137/16): the largest is twice the deviation, as in a real
    // block.
    case TensorRole::kFp4Weight:
      return;
    case TensorRole::kFp8Scale:
      return MapBytes(ScaleCodes(tensor.fan_in, 1, 1, 14), out);
    case TensorRole::kFp4Scale:
      return MapBytes(ScaleCodes(tensor.fan_in, 137, 16, 0), out);
    case TensorRole::kTableScale:
      return MapBytes(ScaleCodes(1, 1, 1, 14), out);
    case TensorRole::kBf16Weight:
      return MapBf16(0.0f, inverse_sqrt, out);
    case TensorRole::kEmbedding:
      return MapBf16(0.0f, 1.0f, out);
    // Logits with a deviation near 2: greedy choices have a margin and sampling has a choice.
    case TensorRole::kHead:
      return MapBf16(0.0f, 2.0f * InverseSqrt(tensor.shape[1]), out);
    case TensorRole::kNorm:
      return MapBf16(1.0f, 0.125f, out);
    case TensorRole::kBias:
      return MapBf16(0.0f, 0.125f, out);
    case TensorRole::kGateBias:
      return MapF32(0.0f, 0.125f, out);
    case TensorRole::kSink:
      return MapF32(0.0f, 1.0f, out);
    case TensorRole::kMixFunction:
      return MapF32(0.0f, inverse_sqrt, out);
    case TensorRole::kMixBase:
      return MapF32(0.0f, 0.5f, out);
    case TensorRole::kMixScale:
      return MapF32(1.0f, 0.25f, out);
  }
}

}  // namespace senko::checkpoint
