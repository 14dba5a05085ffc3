// The kernels behind RunSpan against each other, bit for bit, and what the dot kernel may not take.
#include <bit>
#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "ops/linear/linear_span.h"
#include "ops/linear/linear_test_util.h"

namespace senko::ops {
namespace {

using test::Weight;
using Rows = std::vector<std::vector<float>>;

constexpr WeightFormat kDotFormats[] = {WeightFormat::kFp8, WeightFormat::kFp4, WeightFormat::kBf16};

// Outputs [begin, end) of every row by one kernel; NaN where it wrote nothing.
Rows RunKernel(void (*kernel)(const LinearSpan&), const WeightView& w, const Rows& x, int64_t begin, int64_t end) {
  Rows packed = x, y(x.size(), test::Poisoned(end - begin));
  std::vector<const float*> x_rows;
  std::vector<float*> y_rows;
  for (size_t r = 0; r < x.size(); ++r) {
    if (NeedsPacking(w.format)) {
      packed[r].assign(static_cast<size_t>(PackedCols(w.in)), std::numeric_limits<float>::quiet_NaN());
      PackRow(x[r].data(), w.in, packed[r].data());
    }
    x_rows.push_back(packed[r].data());
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

// What SpanByDot left to the other kernel in the last DotAndFloat: row * outputs.
int64_t left_outputs = 0;
void DotAndFloat(const LinearSpan& span) {
  left_outputs = 0;
  SpanByDot(span, [](const LinearSpan& part) {
    left_outputs += part.rows * (part.end - part.begin);
    SpanByFloat(part);
  });
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

// Every kernel that this machine runs gives the bits of the AVX-512 panel (the portable target has no FMA).
void ExpectAllSame(const Weight& w, const Rows& x, int64_t begin, int64_t end) {
  Rows want;
  for (const int64_t target : {HWY_AVX3, HWY_AVX2}) {
    if ((hwy::SupportedTargets() & target) == 0) continue;
    const test::OnTarget on(target);
    if (want.empty()) want = RunKernel(SpanByPanel, w.view, x, begin, end);
    ExpectSame(RunKernel(SpanByPanel, w.view, x, begin, end), want, std::string("panel ") + hwy::TargetName(target));
    ExpectSame(RunKernel(SpanByFloat, w.view, x, begin, end), want, std::string("float ") + hwy::TargetName(target));
    if (target == HWY_AVX3 && HasDot()) ExpectSame(RunKernel(DotAndFloat, w.view, x, begin, end), want, "dot");
  }
}

// bf16 values, an eighth of them zero, exponents from 2^low to 2^high.
std::vector<float> Bf16Row(int64_t in, int low, int high, std::mt19937& random) {
  std::vector<float> x = test::RandomFloats(in, random);
  for (float& value : x) {
    value = std::ldexp(1.0f + static_cast<float>(random() % 128) / 128.0f,
                       low + static_cast<int>(random() % (high - low + 1)));
    if (random() % 2 == 0) value = -value;
    if (random() % 8 == 0) value = random() % 2 == 0 ? 0.0f : -0.0f;
  }
  return x;
}

// Few rows are one per kernel's row group size; beyond them the dot kernel goes four and eight at a time.
TEST(LinearKernels, GiveTheSameBits) {
  std::mt19937 random(std::random_device{}());
  for (WeightFormat format : {WeightFormat::kFp8, WeightFormat::kFp4, WeightFormat::kBf16, WeightFormat::kF32}) {
    for (int64_t in : {32, 64, 96, 480, 544, 1024, 1056, 1280, 2304, 5120}) {
      for (int64_t rows = 1; rows <= kSkinnyRows; ++rows) {
        SCOPED_TRACE(std::string(test::Name(format)) + " in " + std::to_string(in) + " rows " + std::to_string(rows));
        const Weight w(format, 70, in, random);
        Rows x, exact;
        for (int64_t r = 0; r < rows; ++r) {
          x.push_back(test::RandomFloats(in, random));
          exact.push_back(Bf16Row(in, -10, 10, random));
        }
        ExpectAllSame(w, x, 0, 70);
        ExpectAllSame(w, exact, 0, 70);
        ExpectAllSame(w, exact, 32, 32 + static_cast<int64_t>(random() % 38));
        if (HasDot() && format != WeightFormat::kF32) {
          const test::OnTarget on(HWY_AVX3);
          RunKernel(DotAndFloat, w.view, exact, 0, 70);
          ASSERT_EQ(left_outputs, 0) << "the dot kernel does not take what it is for";
        }
      }
    }
  }
}

TEST(LinearKernels, ARowThatTheDotKernelLeavesDoesNotChangeTheOthers) {
  if (!HasDot()) GTEST_SKIP() << "no AVX512-BF16 with VBMI";
  std::mt19937 random(std::random_device{}());
  const int64_t in = 1056, out = 40;
  for (WeightFormat format : kDotFormats) {
    const Weight w(format, out, in, random);
    for (const float odd : {0x1.01p0f, 0x1p-127f, 0x1p-149f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
      SCOPED_TRACE(std::string(test::Name(format)) + " " + std::to_string(odd));
      Rows x;
      for (int r = 0; r < 6; ++r) x.push_back(Bf16Row(in, -10, 10, random));
      const size_t row = random() % x.size();
      x[row][random() % in] = odd;
      ExpectAllSame(w, x, 0, out);
      const test::OnTarget on(HWY_AVX3);
      RunKernel(DotAndFloat, w.view, x, 0, out);
      ASSERT_EQ(left_outputs, out);
    }
  }
}

// Numbers so small that products and sums are subnormal, which vdpbf16ps would make zero, and so large that they
// overflow; scales that bring them back.
TEST(LinearKernels, GiveTheSameBitsAtTheEndsOfTheRange) {
  std::mt19937 random(std::random_device{}());
  const int64_t in = 1056, out = 35;
  for (WeightFormat format : kDotFormats) {
    for (int top = -126; top <= 127; top += top < -90 || top > 100 ? 1 : 9) {
      SCOPED_TRACE(std::string(test::Name(format)) + " up to 2^" + std::to_string(top));
      Rows x;
      for (int r = 0; r < 3; ++r) x.push_back(Bf16Row(in, std::max(-126, top - 4), top, random));
      if (format == WeightFormat::kBf16) {
        Weight w(format, out, in, random);
        for (const int weight_top : {-126, -110, -60, -20, 0, 60, 127}) {
          const std::vector<float> values = Bf16Row(out * in, std::max(-126, weight_top - 4), weight_top, random);
          for (int64_t i = 0; i < out * in; ++i) {
            const uint16_t code = numerics::FloatToBf16(values[i]);
            std::memcpy(w.data() + 2 * i, &code, 2);
          }
          ExpectAllSame(w, x, 0, out);
        }
        continue;
      }
      for (const int scale : {0, 1, 2, 30, 120, 127, 150, 230, 240, 253, 254}) {
        Weight w(format, out, in, random);
        std::memset(w.scales(), scale, static_cast<size_t>(w.view.bytes() - out * w.view.row_bytes()));
        ExpectAllSame(w, x, 0, out);
      }
    }
  }
}

TEST(LinearKernels, GiveTheSameBitsForSpecialWeights) {
  std::mt19937 random(std::random_device{}());
  const int64_t in = 1056, out = 70;
  for (int64_t rows : {1, 2, 4, 8}) {
    Rows x;
    for (int64_t r = 0; r < rows; ++r) x.push_back(Bf16Row(in, -3, 3, random));
    std::fill(x[0].begin(), x[0].end(), 0.0f);
    for (WeightFormat format : {WeightFormat::kFp8, WeightFormat::kFp4}) {
      for (const int scale : {0, 255}) {
        Weight w(format, out, in, random);
        const int64_t scales = w.view.bytes() - out * w.view.row_bytes();
        w.scales()[static_cast<int64_t>(random() % scales)] = static_cast<uint8_t>(scale);
        ExpectAllSame(w, x, 0, out);
      }
    }
    for (const uint8_t code : {0x7F, 0xFF}) {
      Weight w(WeightFormat::kFp8, out, in, random);
      w.data()[static_cast<int64_t>(random() % (out * in))] = code;
      ExpectAllSame(w, x, 0, out);
    }
    for (const uint16_t code : {0x0001, 0x8040, 0x7F80, 0xFF80, 0x7FC0, 0x0080}) {
      Weight w(WeightFormat::kBf16, out, in, random);
      std::memcpy(w.data() + 2 * (random() % (out * in)), &code, 2);
      ExpectAllSame(w, x, 0, out);
    }
  }
}

}  // namespace
}  // namespace senko::ops
