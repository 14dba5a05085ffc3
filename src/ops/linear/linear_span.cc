#include "ops/linear/linear_span.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "ops/linear/linear_fp4_digits.h"

namespace senko::ops {
namespace {

constexpr int kMaxExponent =
    100;  // of x; with units of at least 2^-(kMaxExponent + 20) no sum is subnormal or infinite

// Whether every x is a whole number of units (1 / unit is `per_unit`) and less than 2^bits of them, and then X.
bool WholeNumbers(const float* x, float per_unit, int32_t* whole) {
  bool ok = true;
  for (int t = 0; t < 32; ++t) {
    const float scaled = x[t] * per_unit;
    whole[t] = static_cast<int32_t>(scaled);
    ok = ok && static_cast<float>(whole[t]) == scaled;
  }
  return ok;
}

// Whether every partial sum of |X| * 12, the largest doubled weight, is at most 2^24 times what all X are multiples of.
bool SumsAreExact(const int32_t* whole) {
  int64_t sum = 0;
  uint32_t bits = 0;
  for (int t = 0; t < 32; ++t) {
    const int32_t magnitude = std::abs(whole[t]);
    sum += magnitude;
    bits |= static_cast<uint32_t>(magnitude);
  }
  return 12 * sum <= (int64_t{bits & (0u - bits)} << 24);
}

// Digits needed for a group's x, and X and the unit: 0, 2 or 3.
uint8_t FindDigits(const float* x, int32_t* whole, float& unit) {
  std::fill_n(whole, 32, 0);
  unit = 1.0f;
  float largest = 0;
  for (int t = 0; t < 32; ++t) {
    if (!(std::fabs(x[t]) <= 0x1p100f)) return 0;  // NaN too
    largest = std::max(largest, std::fabs(x[t]));
  }
  if (largest == 0) return 2;
  const int exponent = std::ilogb(largest);
  if (exponent < -kMaxExponent) return 0;
  // |X| < 2^15 in two digits; the largest that fit is 127 * 256 + 127.
  unit = std::ldexp(1.0f, exponent - 14);
  if (WholeNumbers(x, 1.0f / unit, whole) && largest <= 32639 * unit) return 2;
  unit = std::ldexp(1.0f, exponent - 20);
  if (WholeNumbers(x, 1.0f / unit, whole) && SumsAreExact(whole)) return 3;
  std::fill_n(whole, 32, 0);
  return 0;
}

void PackDigits(const float* x, int lane, Fp4Digits& to) {
  int32_t whole[32];
  float unit;
  to.digits[lane] = FindDigits(x, whole, unit);
  to.half_unit[lane] = 0.5f * unit;
  int32_t sum[3] = {0, 0, 0};
  for (int t = 0; t < 32; ++t) {
    int32_t rest = whole[t];
    for (int d = 0; d < 3; ++d) {
      const int8_t digit = static_cast<int8_t>(static_cast<uint8_t>(rest & 0xFF));
      to.digit[d][t / 8 * 2 + t % 2][4 * lane + t % 8 / 2] = digit;
      sum[d] += digit;
      rest = (rest - digit) / 256;
    }
  }
  for (int d = 0; d < 3; ++d) to.offset[d][lane] = -12 * sum[d];
}

}  // namespace

int64_t PackedFloats(int64_t in) { return PackedCols(in) / kFp4BlockCols * (kFp4BlockCols + kDigitFloats); }

void PackGroup(const float* x, int64_t k, int64_t in, float* packed) {
  const int64_t block = k / kFp4BlockCols, group = k % kFp4BlockCols / 32;
  const int lane = static_cast<int>(group % 4 * 4 + group / 4);
  for (int t = 0; t < 32; ++t) packed[block * kFp4BlockCols + 16 * t + lane] = x[t];
  PackDigits(x, lane, reinterpret_cast<Fp4Digits*>(packed + PackedCols(in))[block]);
}

void PackEnd(int64_t in, float* packed) {
  const float zeros[32] = {};
  for (int64_t k = in; k < PackedCols(in); k += 32) PackGroup(zeros, k, in, packed);
}

void PackRow(const float* x, int64_t in, float* packed) {
  for (int64_t k = 0; k < in; k += 32) PackGroup(x + k, k, in, packed);
  PackEnd(in, packed);
}

void RunSpan(const LinearSpan& span) {
  if (span.rows <= 0 || span.begin >= span.end) return;
  if (span.rows > kSkinnyRows) {
    SpanByPanel(span);
  } else if (span.weight.format == WeightFormat::kFp4 && HasDigitKernel()) {
    SpanByDigits(span);
  } else {
    SpanByStream(span);
  }
}

int64_t SpanOutputs(int64_t rows) { return rows <= kSkinnyRows ? 32 : 96; }

}  // namespace senko::ops
