// Hyper-connections against model.md 3.2 written out once more in float64, on every SIMD target.
#include "ops/mhc/mhc.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "numerics/bf16.h"
#include "ops/each_target.h"

namespace senko::ops {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> Normal(std::mt19937_64& random, int64_t n, float scale, bool bf16 = false) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = bf16 ? numerics::RoundToBf16(normal(random)) : normal(random);
  return v;
}

struct Mixes {
  int64_t rows, hc, hidden;
  std::vector<float> x, fn, base, scale, mixes, pre, post, comb;
  MhcMixParams params;

  Mixes(int64_t rows_in, int64_t hc_in, int64_t hidden_in, int64_t iters, uint64_t seed)
      : rows(rows_in), hc(hc_in), hidden(hidden_in) {
    std::mt19937_64 random(seed);
    const int64_t outputs = (2 + hc) * hc;
    x = Normal(random, rows * hc * hidden, 3.0f, true);
    fn = Normal(random, outputs * hc * hidden, 1.0f / std::sqrt(static_cast<float>(hc * hidden)));
    base = Normal(random, outputs, 1.0f);
    scale = Normal(random, 3, 1.0f);
    params.rows = rows;
    params.streams = hc;
    params.hidden = hidden;
    params.x = x.data();
    params.fn = {WeightFormat::kF32, outputs, hc * hidden, reinterpret_cast<const uint8_t*>(fn.data()), nullptr};
    params.base = base.data();
    params.scale = scale.data();
    params.rms_eps = 1e-20f;
    params.hc_eps = 1e-6f;
    params.sinkhorn_iters = iters;
    mixes.resize(static_cast<size_t>(rows * outputs));
    pre.resize(static_cast<size_t>(rows * hc));
    post.resize(pre.size());
    comb.resize(static_cast<size_t>(rows * hc * hc));
    params.mixes = mixes.data();
    params.pre = pre.data();
    params.post = post.data();
    params.comb = comb.data();
  }

  void Poison() {
    for (auto* v : {&mixes, &pre, &post, &comb}) std::fill(v->begin(), v->end(), kNan);
  }
};

// model.md 3.2, `mixes`, one row. Also the largest sum of |fn * f|, which bounds the projection's rounding
// error.
struct Truth {
  std::vector<double> pre, post, comb;
  double magnitude = 0;
};

Truth Float64Mixes(const Mixes& m, int64_t row) {
  const int64_t n = m.hc * m.hidden, outputs = (2 + m.hc) * m.hc;
  const float* f = m.x.data() + row * n;
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += double{f[i]} * f[i];
  const double rstd = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-20);
  Truth t;
  std::vector<double> value;
  for (int64_t o = 0; o < outputs; ++o) {
    double dot = 0, size = 0;
    for (int64_t i = 0; i < n; ++i) {
      dot += double{m.fn[static_cast<size_t>(o * n + i)]} * f[i];
      size += std::abs(double{m.fn[static_cast<size_t>(o * n + i)]} * f[i]);
    }
    t.magnitude = std::max(t.magnitude, size * rstd);
    const size_t group = o < m.hc ? 0 : o < 2 * m.hc ? 1 : 2;
    value.push_back(dot * rstd * m.scale[group] + m.base[static_cast<size_t>(o)]);
  }
  const size_t hc = static_cast<size_t>(m.hc);
  for (size_t j = 0; j < hc; ++j) t.pre.push_back(1 / (1 + std::exp(-value[j])) + 1e-6f);
  for (size_t j = 0; j < hc; ++j) t.post.push_back(2 / (1 + std::exp(-value[hc + j])));
  std::vector<std::vector<double>> c(hc, std::vector<double>(hc));
  for (size_t j = 0; j < hc; ++j) {
    double sum = 0;
    for (size_t k = 0; k < hc; ++k) sum += c[j][k] = std::exp(value[2 * hc + j * hc + k]);
    for (size_t k = 0; k < hc; ++k) c[j][k] = c[j][k] / sum + 1e-6f;
  }
  const auto columns = [&] {
    for (size_t k = 0; k < hc; ++k) {
      double sum = 0;
      for (size_t j = 0; j < hc; ++j) sum += c[j][k];
      for (size_t j = 0; j < hc; ++j) c[j][k] /= sum + 1e-6f;
    }
  };
  columns();
  for (int64_t i = 1; i < m.params.sinkhorn_iters; ++i) {
    for (size_t j = 0; j < hc; ++j) {
      double sum = 0;
      for (size_t k = 0; k < hc; ++k) sum += c[j][k];
      for (size_t k = 0; k < hc; ++k) c[j][k] /= sum + 1e-6f;
    }
    columns();
  }
  for (const auto& r : c) t.comb.insert(t.comb.end(), r.begin(), r.end());
  return t;
}

void CheckMixes(const Mixes& m, double projection_error) {
  for (int64_t row = 0; row < m.rows; ++row) {
    const Truth t = Float64Mixes(m, row);
    const double e = projection_error * t.magnitude;
    const size_t hc = static_cast<size_t>(m.hc), r = static_cast<size_t>(row);
    for (size_t j = 0; j < hc; ++j) {
      // sigmoid's slope is at most 1/4; 4 ulp for exp and the divisions.
      EXPECT_NEAR(m.pre[r * hc + j], t.pre[j], std::abs(m.scale[0]) * e / 4 + 3e-7);
      EXPECT_NEAR(m.post[r * hc + j], t.post[j], std::abs(m.scale[1]) * e / 2 + 6e-7);
    }
    for (size_t i = 0; i < hc * hc; ++i) {
      // Scaling rows and columns does not expand the (Hilbert) distance between matrices; each of the 2 *
      // iters divisions adds up to (hc / 2 + 1) roundings.
      const double relative =
          4 * std::abs(m.scale[2]) * e + static_cast<double>(m.params.sinkhorn_iters * (m.hc + 2)) * 0x1p-24 + 1e-6;
      EXPECT_NEAR(m.comb[r * hc * hc + i], t.comb[i], relative * t.comb[i]);
    }
  }
}

TEST(MhcMix, MatchesTheFormula) {
  ThreadPool pool(2);
  uint64_t seed = 1;
  for (const int64_t hc : {4, 1, 2, 3, 8}) {
    for (const int64_t hidden : {16, 72, 640}) {
      for (const int64_t iters : {20, 1, 3}) {
        Mixes m(5, hc, hidden, iters, ++seed);
        m.Poison();
        MhcMixReference(m.params, pool);
        CheckMixes(m, 0x1p-24);  // one rounding, of the projection
        ForEachTarget([&] {
          m.Poison();
          MhcMixCpu(m.params, pool);
          CheckMixes(m, 80 * 0x1p-24);  // 64 additions deep in a chunk's lane, and the chunks
        });
      }
    }
  }
}

TEST(MhcMix, ZeroStreamsAreFinite) {
  ThreadPool pool(1);
  Mixes m(1, 4, 64, 20, 9);
  std::fill(m.x.begin(), m.x.end(), 0.0f);
  m.Poison();
  MhcMixCpu(m.params, pool);
  CheckMixes(m, 0);
}

TEST(MhcMix, ARowDoesNotSeeItsNeighbours) {
  ThreadPool pool(2);
  Mixes m(9, 4, 320, 20, 10);
  MhcMixCpu(m.params, pool);
  const auto pre = m.pre, post = m.post, comb = m.comb;
  for (int64_t row = 0; row < 9; ++row) {
    MhcMixParams one = m.params;
    one.rows = 1;
    one.x += row * 4 * 320;
    m.Poison();
    MhcMixCpu(one, pool);
    EXPECT_EQ(std::memcmp(m.pre.data(), pre.data() + row * 4, 16), 0);
    EXPECT_EQ(std::memcmp(m.post.data(), post.data() + row * 4, 16), 0);
    EXPECT_EQ(std::memcmp(m.comb.data(), comb.data() + row * 16, 64), 0);
  }
}

TEST(MhcCollapse, SumsStreamsThenNormalises) {
  ThreadPool pool(2);
  std::mt19937_64 random(20);
  for (const int64_t hc : {1, 3, 4, 8}) {
    for (const int64_t hidden : {16, 50, 1100}) {
      for (const bool round : {false, true}) {
        const int64_t rows = 3;
        const auto x = Normal(random, rows * hc * hidden, 2.0f, true), pre = Normal(random, rows * hc, 1.0f);
        const auto weight = Normal(random, hidden, 1.0f, true);
        std::vector<float> y(static_cast<size_t>(rows * hidden));
        MhcCollapseParams p{rows, hc, hidden, x.data(), pre.data(), nullptr, 1e-20f, round, y.data()};
        const auto check = [&](void (*collapse)(const MhcCollapseParams&, ThreadPool&)) {
          std::fill(y.begin(), y.end(), kNan);
          p.norm_weight = nullptr;
          collapse(p, pool);
          const std::vector<float> plain = y;
          std::fill(y.begin(), y.end(), kNan);
          p.norm_weight = weight.data();
          collapse(p, pool);
          for (int64_t r = 0; r < rows; ++r) {
            double squares = 0;
            for (int64_t c = 0; c < hidden; ++c) {
              double sum = 0, size = 0;
              for (int64_t j = 0; j < hc; ++j) {
                const double term =
                    double{pre[static_cast<size_t>(r * hc + j)]} * x[static_cast<size_t>((r * hc + j) * hidden + c)];
                sum += term;
                size += std::abs(term);
              }
              const double got = plain[static_cast<size_t>(r * hidden + c)];
              EXPECT_NEAR(got, sum,
                          2.0 * static_cast<double>(hc) * 0x1p-24 * size + (round ? 0x1p-8 * std::abs(sum) : 0.0));
              if (round) {
                EXPECT_EQ(got, numerics::RoundToBf16(static_cast<float>(got)));
              }
              squares += got * got;
            }
            const double rstd = 1 / std::sqrt(squares / static_cast<double>(hidden) + 1e-20);
            for (int64_t c = 0; c < hidden; ++c) {
              const double want = weight[static_cast<size_t>(c)] * plain[static_cast<size_t>(r * hidden + c)] * rstd;
              EXPECT_NEAR(y[static_cast<size_t>(r * hidden + c)], want, (round ? 0x1.01p-8 : 2e-6) * std::abs(want));
            }
          }
        };
        check(MhcCollapseReference);
        ForEachTarget([&] { check(MhcCollapseCpu); });
      }
    }
  }
}

TEST(MhcExpand, MixesStreamsOverTheFirstIndexInPlace) {
  ThreadPool pool(2);
  std::mt19937_64 random(30);
  for (const int64_t hc : {1, 3, 4, 8}) {
    for (const int64_t hidden : {16, 50, 1100}) {
      for (const bool round : {false, true}) {
        const int64_t rows = 3;
        const auto before = Normal(random, rows * hc * hidden, 2.0f, true),
                   y = Normal(random, rows * hidden, 1.0f, true);
        const auto post = Normal(random, rows * hc, 1.0f), comb = Normal(random, rows * hc * hc, 1.0f);
        std::vector<float> x = before;
        MhcExpandParams p{rows, hc, hidden, y.data(), post.data(), comb.data(), round, x.data()};
        MhcExpandReference(p, pool);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t k = 0; k < hc; ++k) {
            for (int64_t c = 0; c < hidden; ++c) {
              double sum = double{post[static_cast<size_t>(r * hc + k)]} * y[static_cast<size_t>(r * hidden + c)];
              double size = std::abs(sum);
              for (int64_t j = 0; j < hc; ++j) {
                const double term = double{comb[static_cast<size_t>((r * hc + j) * hc + k)]} *
                                    before[static_cast<size_t>((r * hc + j) * hidden + c)];
                sum += term;
                size += std::abs(term);
              }
              EXPECT_NEAR(x[static_cast<size_t>((r * hc + k) * hidden + c)], sum,
                          static_cast<double>(hc + 2) * 0x1p-24 * size + (round ? 0x1p-8 * std::abs(sum) : 0.0));
            }
          }
        }
        const std::vector<float> want = x;
        ForEachTarget([&] {
          x = before;
          MhcExpandCpu(p, pool);
          const bool fused = (hwy::SupportedTargets() & (HWY_AVX2 | HWY_AVX3 | HWY_NEON)) != 0;
          for (size_t i = 0; i < x.size(); ++i) {
            if (fused) {
              EXPECT_EQ(x[i], want[i]) << i;
            } else {
              EXPECT_NEAR(x[i], want[i], 0x1p-7 * std::abs(want[i]) + 1e-4) << i;
            }
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace senko::ops
