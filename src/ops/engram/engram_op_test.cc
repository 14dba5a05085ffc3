// Engram's gather and inject against model.md 3.7 in float64, on every SIMD target.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "numerics/bf16.h"
#include "numerics/quantise.h"
#include "ops/each_target.h"
#include "ops/engram/engram.h"

namespace senko::ops {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(EngramGather, DequantisesTheNamedRows) {
  ThreadPool pool(3);
  std::mt19937_64 random(1);
  const int64_t table_rows = 1000, dim = 96, rows = 13, slots = 5;
  std::vector<uint8_t> values(table_rows * dim), scales(table_rows * dim / 32);
  for (uint8_t& v : values) {
    do v = static_cast<uint8_t>(random());
    while ((v & 0x7F) == 0x7F);
  }
  for (uint8_t& s : scales) s = static_cast<uint8_t>(100 + random() % 40);
  std::vector<int64_t> indices(rows * slots);
  for (int64_t& i : indices) i = static_cast<int64_t>(random() % table_rows);
  indices[0] = table_rows - 1;
  indices[1] = 0;
  std::vector<float> out(rows * slots * dim, kNan);
  const EngramGatherParams p{rows, slots, indices.data(), {values.data(), scales.data(), table_rows, dim}, out.data()};
  const auto check = [&] {
    for (size_t i = 0; i < indices.size(); ++i) {
      for (int64_t c = 0; c < dim; ++c) {
        const float want = std::ldexp(numerics::E4m3ToFloat(values[static_cast<size_t>(indices[i] * dim + c)]),
                                      scales[static_cast<size_t>((indices[i] * dim + c) / 32)] - 127);
        const float got = out[i * static_cast<size_t>(dim) + static_cast<size_t>(c)];
        ASSERT_EQ(got, want);
        ASSERT_EQ(got, numerics::RoundToBf16(got));
      }
    }
  };
  EngramGatherReference(p, pool);
  check();
  ForEachTarget([&] {
    std::fill(out.begin(), out.end(), kNan);
    EngramGatherCpu(p, pool);
    check();
  });
  for (const int64_t bad : {int64_t{-1}, table_rows, std::numeric_limits<int64_t>::max()}) {
    indices[37] = bad;
    EXPECT_THROW(EngramGatherCpu(p, pool), std::logic_error);
    EXPECT_THROW(EngramGatherReference(p, pool), std::logic_error);
  }
}

struct Injection {
  int64_t rows, streams, hidden;
  std::vector<float> kv, q, k, before, x;
  std::vector<uint8_t> is_image;
  EngramInjectParams params;

  Injection(int64_t rows_in, int64_t streams_in, int64_t hidden_in, uint64_t seed)
      : rows(rows_in), streams(streams_in), hidden(hidden_in) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& v, int64_t n) {
      v.resize(static_cast<size_t>(n));
      for (float& f : v) f = numerics::RoundToBf16(normal(random));
    };
    fill(kv, rows * (streams + 1) * hidden);
    fill(q, streams * hidden);
    fill(k, streams * hidden);
    fill(before, rows * streams * hidden);
    x = before;
    is_image.assign(static_cast<size_t>(rows), 0);
    params = {rows, streams, hidden, kv.data(), q.data(), k.data(), 1e-20f, is_image.data(), false, x.data()};
  }

  // model.md 3.7; image rows unchanged.
  void Check() const {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t s = 0; s < streams; ++s) {
        const float* xs = before.data() + (r * streams + s) * hidden;
        const float* key = kv.data() + (r * (streams + 1) + s) * hidden;
        const float* value = kv.data() + (r * (streams + 1) + streams) * hidden;
        double a = 0, x2 = 0, k2 = 0, size = 0;
        for (int64_t c = 0; c < hidden; ++c) {
          const double term =
              double{xs[c]} * q[static_cast<size_t>(s * hidden + c)] * k[static_cast<size_t>(s * hidden + c)] * key[c];
          a += term;
          size += std::abs(term);
          x2 += double{xs[c]} * xs[c];
          k2 += double{key[c]} * key[c];
        }
        const double n = static_cast<double>(hidden);
        const double rs = 1 / std::sqrt(x2 / n + 1e-20) / std::sqrt(k2 / n + 1e-20) / std::sqrt(n);
        const auto gate_of = [](double dot) {
          return 1 / (1 + std::exp(-std::copysign(std::sqrt(std::max(std::abs(dot), 1e-6)), dot)));
        };
        const bool image = is_image[static_cast<size_t>(r)] != 0;
        const double gate = image ? 0 : gate_of(a * rs);
        // 70 roundings along a lane's chain and its products; the root is steep near 0, so the bound is the
        // gate's own change, across the sign's jump where dot's sign is not certain.
        const double slack = 70 * 0x1p-24 * size * rs;
        const double gate_error =
            image ? 0 : std::max(gate_of(a * rs + slack) - gate, gate - gate_of(a * rs - slack)) + 3e-7;
        for (int64_t c = 0; c < hidden; ++c) {
          const double want = xs[c] + gate * value[c];
          const double bound = gate_error * std::abs(value[c]) + 0x1p-23 * (std::abs(want) + std::abs(value[c])) +
                               (params.round_bf16 ? 0x1.01p-8 * std::abs(want) : 0);
          ASSERT_NEAR(x[static_cast<size_t>((r * streams + s) * hidden + c)], want, image ? 0.0 : bound)
              << r << " " << s << " " << c;
        }
      }
    }
  }
};

TEST(EngramInject, MatchesTheFormula) {
  ThreadPool pool(2);
  uint64_t seed = 10;
  for (const int64_t streams : {1, 4}) {
    for (const int64_t hidden : {16, 50, 1300}) {
      for (const bool round : {false, true}) {
        Injection in(5, streams, hidden, ++seed);
        in.params.round_bf16 = round;
        in.is_image[3] = 1;
        EngramInjectReference(in.params, pool);
        in.Check();
        ForEachTarget([&] {
          in.x = in.before;
          EngramInjectCpu(in.params, pool);
          in.Check();
        });
        in.params.is_image = nullptr;
        in.is_image[3] = 0;
        in.x = in.before;
        EngramInjectCpu(in.params, pool);
        in.Check();
      }
    }
  }
}

TEST(EngramInject, AZeroDotGatesALittleAboveAHalf) {
  ThreadPool pool(1);
  for (auto* inject : {EngramInjectReference, EngramInjectCpu}) {
    Injection in(1, 2, 64, 30);
    std::fill_n(in.before.begin(), 64, 0.0f);  // stream 0 is zero: dot = +0
    in.x = in.before;
    inject(in.params, pool);
    in.Check();
    const float gate = 1.0f / (1.0f + std::exp(-1e-3f));
    for (size_t c = 0; c < 64; ++c) EXPECT_FLOAT_EQ(in.x[c], gate * in.kv[2 * 64 + c]);
  }
}

TEST(EngramInject, NanShows) {
  ThreadPool pool(1);
  Injection in(2, 2, 64, 40);
  in.kv[5] = kNan;  // row 0, stream 0's key
  EngramInjectCpu(in.params, pool);
  for (size_t c = 0; c < 64; ++c) EXPECT_TRUE(std::isnan(in.x[c]));
  for (size_t c = 64; c < in.x.size(); ++c) EXPECT_FALSE(std::isnan(in.x[c]));
}

}  // namespace
}  // namespace senko::ops
