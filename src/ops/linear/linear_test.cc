// LinearCpu against LinearReference over formats, shapes and SIMD targets; canonical arithmetic bit for bit.
#include "ops/linear/linear.h"

#include <cmath>
#include <cstring>
#include <string>

#include "gtest/gtest.h"
#include "numerics/quantise.h"
#include "ops/linear/linear_test_util.h"

namespace senko::ops {
namespace {

using test::Poisoned;
using test::RandomFloats;
using test::Weight;

constexpr WeightFormat kFormats[] = {WeightFormat::kFp8, WeightFormat::kFp4, WeightFormat::kBf16, WeightFormat::kF32};

LinearParams Params(const Weight& w, int64_t rows, const std::vector<float>& x, std::vector<float>& y) {
  LinearParams p;
  p.rows = rows;
  p.x = x.data();
  p.x_stride = static_cast<int64_t>(x.size()) / rows;
  p.weight = w.view;
  p.y = y.data();
  p.y_stride = static_cast<int64_t>(y.size()) / rows;
  return p;
}

// |w| as a weight of the same format: clears the sign bits.
Weight Magnitude(Weight w) {
  const int64_t data = w.view.out * w.view.row_bytes();
  const int step = w.view.format == WeightFormat::kBf16 ? 2 : w.view.format == WeightFormat::kF32 ? 4 : 1;
  for (int64_t i = step - 1; i < data; i += step) w.data()[i] &= w.view.format == WeightFormat::kFp4 ? 0x77 : 0x7F;
  return w;
}

// A product passes through at most 64 additions of its lane in a chunk, one scaling, 4 levels of the tree and one
// addition per chunk, each rounding by 2^-24 relative to a partial sum of |x w| at most; without FMA twice that.
double Bound(int64_t in, double magnitude) {
  const double roundings = 2.0 * (64 + 2 + 4) + static_cast<double>(in) / kChunk + 2;
  return roundings * 0x1p-24 * magnitude;
}

void CheckAgainstReference(WeightFormat format, int64_t rows, int64_t out, int64_t in, ThreadPool& pool) {
  SCOPED_TRACE(std::string(test::Name(format)) + " rows " + std::to_string(rows) + " out " + std::to_string(out) +
               " in " + std::to_string(in));
  std::mt19937 random(std::random_device{}());
  const Weight w(format, out, in, random);
  const Weight magnitude = Magnitude(w);
  const int64_t x_stride = in + 3, y_stride = out + 2;
  std::vector<float> x = RandomFloats(rows * x_stride, random), abs_x = x;
  for (float& value : abs_x) value = std::fabs(value);
  for (int64_t r = 0; r < rows; ++r) {  // what lies between rows must not be read into a result
    for (int64_t k = in; k < x_stride; ++k) x[r * x_stride + k] = std::numeric_limits<float>::quiet_NaN();
  }
  std::vector<float> y = Poisoned(rows * y_stride), want = y, bound = y, rounded = y;
  LinearCpu(Params(w, rows, x, y), pool);
  LinearReference(Params(w, rows, x, want), pool);
  LinearReference(Params(magnitude, rows, abs_x, bound), pool);
  LinearParams rounding = Params(w, rows, x, rounded);
  rounding.round_bf16 = true;
  LinearCpu(rounding, pool);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t n = 0; n < y_stride; ++n) {
      const int64_t i = r * y_stride + n;
      if (n >= out) {
        ASSERT_TRUE(std::isnan(y[i])) << "wrote past the outputs";
        continue;
      }
      ASSERT_LE(std::fabs(y[i] - want[i]), Bound(in, bound[i])) << "row " << r << " output " << n;
      ASSERT_EQ(rounded[i], numerics::RoundToBf16(y[i]));
    }
  }
}

TEST(Linear, EveryFormatAndShapeMatchesTheReference) {
  ThreadPool pool(2);
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    const test::OnTarget on(target);
    SCOPED_TRACE(hwy::TargetName(target));
    for (WeightFormat format : kFormats) {
      for (int64_t in : {32, 96, 1024, 1056, 2304}) {
        for (int64_t rows : {1, 2, 3, 5, 8, 9, 31}) CheckAgainstReference(format, rows, 33, in, pool);
        for (int64_t out : {1, 7, 32, 100}) {
          CheckAgainstReference(format, 1, out, in, pool);
          CheckAgainstReference(format, 13, out, in, pool);
        }
      }
      CheckAgainstReference(format, 1, 33, 5120, pool);
      CheckAgainstReference(format, 64, 100, 5120, pool);
    }
    for (WeightFormat format : {WeightFormat::kBf16, WeightFormat::kF32}) {
      for (int64_t in : {1, 15, 17, 31, 33, 1023, 1025, 1041}) {
        CheckAgainstReference(format, 1, 7, in, pool);
        CheckAgainstReference(format, 11, 9, in, pool);
      }
    }
  }
}

TEST(Linear, ARowDoesNotDependOnBatchThreadsOrTarget) {
  std::mt19937 random(std::random_device{}());
  for (WeightFormat format : kFormats) {
    for (int64_t in : {32, 1056, 2304}) {
      SCOPED_TRACE(std::string(test::Name(format)) + " in " + std::to_string(in));
      const int64_t out = 131, most = 71;
      const Weight w(format, out, in, random);
      const std::vector<float> x = RandomFloats(most * in, random);
      std::vector<float> avx[2];
      for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
        const test::OnTarget on(target);
        SCOPED_TRACE(hwy::TargetName(target));
        std::vector<float> alone = Poisoned(most * out);
        ThreadPool one(1);
        for (int64_t r = 0; r < most; ++r) {
          LinearParams p = Params(w, most, x, alone);
          p.rows = 1;
          p.x += r * in;
          p.y += r * out;
          LinearCpu(p, one);
        }
        for (int threads : {1, 2, 3}) {
          ThreadPool pool(threads);
          for (int64_t rows : {2, 3, 4, 5, 7, 8, 9, 17, 71}) {
            std::vector<float> y = Poisoned(most * out);
            LinearParams p = Params(w, most, x, y);
            p.rows = rows;
            LinearCpu(p, pool);
            ASSERT_TRUE(test::SameBits(y.data(), alone.data(), rows * out))
                << rows << " rows, " << threads << " threads";
          }
        }
        if (target == HWY_AVX2) avx[0] = alone;
        if (target == HWY_AVX3) avx[1] = alone;
      }
      if (!avx[0].empty() && !avx[1].empty()) {
        EXPECT_TRUE(test::SameBits(avx[0].data(), avx[1].data(), most * out)) << "AVX2 and AVX-512 differ";
      }
    }
  }
}

TEST(Linear, ManyGivesTheBitsOfOneByOne) {
  std::mt19937 random(std::random_device{}());
  ThreadPool pool(2);
  const int64_t in = 1056;
  for (int64_t rows : {1, 19}) {
    const std::vector<float> x = RandomFloats(rows * in, random);
    std::vector<Weight> weights;
    std::vector<LinearParams> many;
    std::vector<std::vector<float>> got, want;
    for (WeightFormat format : kFormats)
      weights.emplace_back(format, 37 + 64 * static_cast<int>(weights.size()), in, random);
    for (const Weight& w : weights) {
      got.push_back(Poisoned(rows * w.view.out));
      want.push_back(Poisoned(rows * w.view.out));
    }
    for (size_t i = 0; i < weights.size(); ++i) {
      many.push_back(Params(weights[i], rows, x, got[i]));
      LinearCpu(Params(weights[i], rows, x, want[i]), pool);
    }
    LinearManyCpu(many.data(), static_cast<int>(many.size()), pool);
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_TRUE(test::SameBits(got[i].data(), want[i].data(), static_cast<int64_t>(got[i].size())));
    }
  }
}

// A NaN weight code or NaN scale makes every output it feeds NaN, whatever x holds; extreme scales stay exact.
TEST(Linear, SpecialCodesReachTheOutput) {
  std::mt19937 random(std::random_device{}());
  ThreadPool pool(2);
  const int64_t in = 1056, out = 70;
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    const test::OnTarget on(target);
    for (int64_t rows : {1, 4, 12}) {
      SCOPED_TRACE(std::string(hwy::TargetName(target)) + " rows " + std::to_string(rows));
      const std::vector<float> x(static_cast<size_t>(rows * in), 0.0f);
      for (uint8_t code : {0x7F, 0xFF}) {
        Weight w(WeightFormat::kFp8, out, in, random);
        const int64_t n = static_cast<int64_t>(random() % out), k = static_cast<int64_t>(random() % in);
        w.data()[n * in + k] = code;
        std::vector<float> y(static_cast<size_t>(rows * out), 1.0f);
        LinearCpu(Params(w, rows, x, y), pool);
        for (int64_t i = 0; i < rows * out; ++i) ASSERT_EQ(std::isnan(y[i]), i % out == n) << i % out << " vs " << n;
      }
      Weight fp8(WeightFormat::kFp8, out, in, random), fp4(WeightFormat::kFp4, out, in, random);
      const int64_t tile = static_cast<int64_t>(random() % 3), block = static_cast<int64_t>(random() % 33);
      fp8.scales()[tile * 33 + block] = 255;
      fp4.scales()[5 * 33 + block] = 255;
      std::vector<float> y8(static_cast<size_t>(rows * out), 1.0f), y4 = y8;
      LinearCpu(Params(fp8, rows, x, y8), pool);
      LinearCpu(Params(fp4, rows, x, y4), pool);
      for (int64_t i = 0; i < rows * out; ++i) {
        ASSERT_EQ(std::isnan(y8[i]), i % out / 32 == tile);
        ASSERT_EQ(std::isnan(y4[i]), i % out == 5);
      }
    }
  }
}

TEST(Linear, ExtremeScalesAreExact) {
  std::mt19937 random(std::random_device{}());
  ThreadPool pool(2);
  const int64_t in = 64, out = 40;
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    const test::OnTarget on(target);
    for (WeightFormat format : {WeightFormat::kFp8, WeightFormat::kFp4}) {
      for (int scale : {0, 1, 8, 9, 100, 240, 246, 247, 250, 254}) {
        for (int64_t rows : {1, 2, 9}) {
          SCOPED_TRACE(std::string(hwy::TargetName(target)) + " " + test::Name(format) + " scale " +
                       std::to_string(scale) + " rows " + std::to_string(rows));
          // One weight of value 1 per output and x a power of two that keeps the product a normal float.
          Weight w(format, out, in, random);
          std::memset(w.data(), 0, static_cast<size_t>(out * w.view.row_bytes()));
          const int64_t scales = w.view.bytes() - out * w.view.row_bytes();
          std::memset(w.scales(), scale, static_cast<size_t>(scales));
          const float one = scale < 127 ? 0x1p60f : 0x1p-60f;
          const std::vector<float> x(static_cast<size_t>(rows * in), one);
          for (int64_t n = 0; n < out; ++n) {
            const int64_t k = static_cast<int64_t>(random() % in);
            if (format == WeightFormat::kFp8) {
              w.data()[n * in + k] = 0x38;
            } else {
              w.data()[(n * in + k) / 2] = k % 2 != 0 ? 0x20 : 0x02;
            }
          }
          std::vector<float> y = Poisoned(rows * out);
          LinearCpu(Params(w, rows, x, y), pool);
          for (float value : y) ASSERT_EQ(value, std::ldexp(one, scale - 127));
        }
      }
    }
  }
}

TEST(Linear, RowsOfAWeight) {
  std::mt19937 random(std::random_device{}());
  ThreadPool pool(2);
  for (WeightFormat format : kFormats) {
    const Weight w(format, 100, 96, random);
    const std::vector<float> x = RandomFloats(96, random);
    std::vector<float> all = Poisoned(100), some = Poisoned(36);
    LinearCpu(Params(w, 1, x, all), pool);
    LinearParams p = Params(w, 1, x, some);
    p.weight = w.view.Rows(64, 36);
    LinearCpu(p, pool);
    EXPECT_TRUE(test::SameBits(some.data(), all.data() + 64, 36)) << test::Name(format);
  }
}

TEST(RoundActivations, GivesTheBitsOfTheScalarQuantiser) {
  std::mt19937 random(std::random_device{}());
  ThreadPool pool(3);
  const int64_t rows = 37, cols = 96;
  std::vector<float> x = RandomFloats(rows * cols, random);
  for (float& value : x) value *= std::exp2f(static_cast<float>(static_cast<int>(random() % 60) - 30));
  std::vector<float> want = Poisoned(rows * cols), got = Poisoned(rows * cols);
  RoundActivationsReference(x.data(), want.data(), rows, cols, pool);
  RoundActivationsCpu(x.data(), got.data(), rows, cols, pool);
  EXPECT_TRUE(test::SameBits(want.data(), got.data(), rows * cols));
  RoundActivationsCpu(x.data(), x.data(), rows, cols, pool);
  EXPECT_TRUE(test::SameBits(want.data(), x.data(), rows * cols));
}

}  // namespace
}  // namespace senko::ops
