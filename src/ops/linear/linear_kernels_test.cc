// The kernels behind RunSpan against each other, bit for bit, and the digits of x.
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "ops/linear/linear_fp4_digits.h"
#include "ops/linear/linear_span.h"
#include "ops/linear/linear_test_util.h"

namespace senko::ops {
namespace {

using test::Weight;
using Rows = std::vector<std::vector<float>>;

std::vector<float> Packed(const std::vector<float>& x, PackFor rows = PackFor::kFewRows) {
  const int64_t in = static_cast<int64_t>(x.size());
  std::vector<float> packed = test::Poisoned(PackedFloats(in));
  PackRow(x.data(), in, rows, packed.data());
  return packed;
}

// Outputs [begin, end) of every row by one kernel; NaN where it wrote nothing.
Rows RunKernel(void (*kernel)(const LinearSpan&), const WeightView& w, const Rows& x, int64_t begin, int64_t end,
               PackFor rows = PackFor::kFewRows) {
  Rows in = x, y(x.size(), test::Poisoned(end - begin));
  std::vector<const float*> x_rows;
  std::vector<float*> y_rows;
  for (size_t r = 0; r < x.size(); ++r) {
    if (NeedsPacking(w.format)) in[r] = Packed(x[r], rows);
    x_rows.push_back(in[r].data());
    y_rows.push_back(y[r].data());
  }
  LinearSpan span;
  span.rows = static_cast<int64_t>(x.size());
  span.x = x_rows.data();
  span.weight = w;
  span.begin = span.y_first = begin;
  span.end = end;
  span.y = y_rows.data();
  kernel(span);
  return y;
}

// A NaN may carry other bits.
bool Same(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

void ExpectSame(const Rows& got, const Rows& want, const std::string& what) {
  for (size_t r = 0; r < want.size(); ++r) {
    for (size_t n = 0; n < want[r].size(); ++n) {
      ASSERT_TRUE(Same(got[r][n], want[r][n]))
          << what << ": row " << r << " output " << n << ": " << got[r][n] << " is not " << want[r][n];
    }
  }
}

// Every kernel that this machine runs gives the bits of the first panel (the portable target has no FMA).
void ExpectAllSame(const Weight& w, const Rows& x, int64_t begin, int64_t end) {
  Rows want;
  for (const int64_t target : {HWY_AVX3, HWY_AVX2}) {
    if ((hwy::SupportedTargets() & target) == 0) continue;
    const test::OnTarget on(target);
    if (want.empty()) want = RunKernel(SpanByPanel, w.view, x, begin, end);
    ExpectSame(RunKernel(SpanByPanel, w.view, x, begin, end), want, std::string("panel ") + hwy::TargetName(target));
    ExpectSame(RunKernel(SpanByStream, w.view, x, begin, end), want, std::string("stream ") + hwy::TargetName(target));
    if (w.view.format == WeightFormat::kFp4 && HasDigitKernel()) {
      ExpectSame(RunKernel(SpanByDigits, w.view, x, begin, end), want, "digits");
      ExpectSame(RunKernel(SpanByDigits, w.view, x, begin, end, PackFor::kManyRows), want, "digits without any");
    }
  }
}

// What x is in front of FP4 and FP8 weights: e4m3 values times a power of two per 32 columns.
std::vector<float> RoundedRow(int64_t in, std::mt19937& random) {
  ThreadPool one(1);
  std::vector<float> x = test::RandomFloats(in, random);
  RoundActivationsReference(x.data(), x.data(), 1, in, one);
  return x;
}

// bf16 values with `bits` significant bits, an eighth of them zero, exponents from `low` to `high`.
std::vector<float> ShortRow(int64_t in, int bits, int low, int high, std::mt19937& random) {
  std::vector<float> x(static_cast<size_t>(in));
  for (float& value : x) {
    const int exponent = low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
    value = std::ldexp(static_cast<float>((1u << (bits - 1)) + random() % (1u << (bits - 1))), exponent - bits + 1);
    if (random() % 2 == 0) value = -value;
    if (random() % 8 == 0) value = random() % 2 == 0 ? 0.0f : -0.0f;
  }
  return x;
}

TEST(LinearKernels, GiveTheSameBits) {
  std::mt19937 random(std::random_device{}());
  for (WeightFormat format : {WeightFormat::kFp8, WeightFormat::kFp4, WeightFormat::kBf16, WeightFormat::kF32}) {
    for (int64_t in : {32, 64, 96, 480, 544, 1024, 1056, 1280, 2304, 5120}) {
      for (int64_t rows = 1; rows <= kSkinnyRows; ++rows) {
        SCOPED_TRACE(std::string(test::Name(format)) + " in " + std::to_string(in) + " rows " + std::to_string(rows));
        const Weight w(format, 70, in, random);
        Rows rounded, any, mixed;
        for (int64_t r = 0; r < rows; ++r) {
          rounded.push_back(RoundedRow(in, random));
          any.push_back(test::RandomFloats(in, random));
          mixed.push_back(random() % 2 == 0 ? RoundedRow(in, random) : any.back());
        }
        ExpectAllSame(w, rounded, 0, 70);
        ExpectAllSame(w, any, 0, 70);
        ExpectAllSame(w, mixed, 32, 32 + static_cast<int64_t>(random() % 39));
      }
    }
  }
}

// Ranges around those that fit two and three digits, at both ends of the exponents, with every kind of scale.
TEST(LinearKernels, GiveTheSameBitsWhereDigitsEnd) {
  std::mt19937 random(std::random_device{}());
  const int64_t in = 1056, out = 9;
  for (const int bits : {1, 4, 8, 11, 15, 16, 21, 22, 24}) {
    for (int span = 0; span <= 24; span += span < 8 ? 4 : 1) {
      for (const int top : {-125, -101, -100, -80, 0, 99, 100, 101, 127}) {
        const Rows x = {ShortRow(in, bits, std::max(-126, top - span), top, random), RoundedRow(in, random)};
        Weight w(WeightFormat::kFp4, out, in, random);
        for (int64_t i = 0; i < out * (in / 32); ++i) {
          const uint8_t scales[] = {0, 1, 2, 60, 127, 200, 253, 254, 255};
          if (random() % 4 == 0) w.scales()[i] = scales[random() % 9];
        }
        SCOPED_TRACE(std::to_string(bits) + " bits, exponents " + std::to_string(top - span) + " to " +
                     std::to_string(top));
        ExpectAllSame(w, x, 0, out);
      }
    }
  }
}

TEST(LinearKernels, GiveTheSameBitsForSpecialNumbers) {
  std::mt19937 random(std::random_device{}());
  const int64_t in = 1056, out = 9;
  const Weight w(WeightFormat::kFp4, out, in, random);
  for (const float odd : {0x1.000002p0f, 0x1p-127f, 0x1p-149f, 0x1p-126f, 0x1p127f, 0x1p20f, 0x1p-20f,
                          std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    SCOPED_TRACE(odd);
    Rows x;
    for (int r = 0; r < 7; ++r) x.push_back(RoundedRow(in, random));
    x[random() % x.size()][random() % in] = odd;
    ExpectAllSame(w, x, 0, out);
  }
}

// How many digits a group is to have, by its definition (linear_fp4_digits.h).
int WantedDigits(const float* x) {
  double largest = 0, sum = 0;
  for (int t = 0; t < 32; ++t) {
    if (!std::isfinite(x[t])) return 0;
    largest = std::max(largest, std::fabs(static_cast<double>(x[t])));
    sum += std::fabs(static_cast<double>(x[t]));
  }
  if (largest == 0) return 2;
  const int exponent = std::ilogb(largest);
  if (std::abs(exponent) > 100) return 0;
  const auto whole = [&](int unit) {
    for (int t = 0; t < 32; ++t) {
      const double units = std::ldexp(static_cast<double>(x[t]), -unit);
      if (units != std::trunc(units)) return false;
    }
    return true;
  };
  if (whole(exponent - 14) && std::ldexp(largest, 14 - exponent) <= 127 * 257) return 2;
  int common = exponent;  // the largest power of two that divides all
  while (!whole(common)) {
    if (--common < exponent - 20) return 0;
  }
  return 12 * std::ldexp(sum, -common) <= 0x1p24 ? 3 : 0;
}

// Digits, where there are any, are x; ordinary activations mostly have them; none are claimed for what is no number.
TEST(LinearKernels, DigitsAreX) {
  if (!CpuHasDigitKernel()) GTEST_SKIP() << "no AVX-512 with VNNI and VBMI";
  std::mt19937 random(std::random_device{}());
  const int64_t in = 5120 + 96;
  Rows rows = {RoundedRow(in, random),
               test::RandomFloats(in, random),
               ShortRow(in, 8, -7, 7, random),
               ShortRow(in, 8, -126, 127, random),
               std::vector<float>(static_cast<size_t>(in), 0.0f),
               ShortRow(in, 4, -6, 12, random),
               ShortRow(in, 15, 3, 3, random),
               ShortRow(in, 1, -110, 0, random)};
  rows[1][77] = std::numeric_limits<float>::quiet_NaN();
  rows[1][1777] = std::numeric_limits<float>::infinity();
  for (size_t r = 0; r < rows.size(); ++r) {
    const std::vector<float> packed = Packed(rows[r]);
    int64_t with = 0;
    for (int64_t k = 0; k < PackedCols(in); ++k) {
      const Fp4Digits& d = DigitsOf(packed.data(), in, k / kFp4BlockCols);
      const int64_t group = k / 32 % 16, lane = group % 4 * 4 + group / 4, t = k % 32;
      const int digits = d.digits[lane];
      ASSERT_TRUE(digits == 0 || digits == 2 || digits == 3);
      double value = 0;
      int32_t sum[3] = {0, 0, 0};
      for (int i = 2; i >= 0; --i) {
        const int digit = d.digit[i][t / 8 * 2 + t % 2][4 * lane + t % 8 / 2];
        value = 256 * value + digit;
        if (digits < 3 && i == 2) {
          ASSERT_EQ(digit, 0);
        }
        for (int u = 0; u < 32; ++u) sum[i] += d.digit[i][u / 8 * 2 + u % 2][4 * lane + u % 8 / 2];
        ASSERT_EQ(d.offset[i][lane], -12 * sum[i]);
      }
      with += digits != 0 && k < in;
      if (k < in && t == 0) {
        ASSERT_EQ(digits, WantedDigits(rows[r].data() + k)) << "row " << r << " column " << k;
      }
      ASSERT_EQ(value * 2.0 * d.half_unit[lane], digits == 0 || k >= in ? 0.0 : rows[r][k])
          << "row " << r << " column " << k;
    }
    if (r == 0) {
      EXPECT_GT(with, in * 9 / 10);
    }
    if (r == 1) {
      EXPECT_EQ(with, 0);
    }
    if (r == 4 || r == 6) {
      EXPECT_EQ(with, in);
    }
  }
}

}  // namespace
}  // namespace senko::ops
