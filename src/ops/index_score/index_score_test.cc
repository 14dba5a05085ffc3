// Index scores: the reference against float64 arithmetic on dequantised values, every kernel against the
// reference bit for bit. Index queries: against rotation and quantisation done separately.
#include "ops/index_score/index_score.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "gtest/gtest.h"
#include "numerics/bf16.h"
#include "numerics/quantise.h"
#include "ops/each_target.h"
#include "ops/index_score/index_fixture.h"

namespace senko::ops {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A NaN's payload is the hardware's affair; that it is one is not.
uint32_t Bits(float x) {
  uint32_t b = 0x7FC00000u;
  if (!std::isnan(x)) std::memcpy(&b, &x, 4);
  return b;
}

// Sums everything in float64; also the sum of magnitudes that bounds float32's error.
struct Oracle {
  double score = 0;
  double magnitude = 0;
};

Oracle Float64Score(const IndexScoreParams& p, int64_t row, int64_t entry) {
  const SequenceKv& s = p.rows.sequence_kv[p.rows.sequences[row]];
  Oracle o;
  for (int64_t h = 0; h < p.heads; ++h) {
    double dot = 0, size = 0;
    for (int64_t b = 0; b < p.dim / 32; ++b) {
      float q[32], k[32];
      const int64_t at = (row * p.heads + h) * (p.dim / 32) + b;
      numerics::DequantiseFp4(p.q_values + at * 16, p.q_scales[at], q);
      numerics::DequantiseFp4(p.entries.KeyValues(s, entry) + b * 16, p.entries.KeyScales(s, entry)[b], k);
      for (int i = 0; i < 32; ++i) {
        dot += double{q[i]} * k[i];
        size += std::abs(double{q[i]} * k[i]);
      }
    }
    const double w = p.weights[row * p.heads + h];
    o.score += w * std::max(dot, 0.0);
    o.magnitude += std::abs(w) * size;
  }
  return o;
}

TEST(IndexScore, ReferenceIsTheFloat64SumWithinRounding) {
  for (const auto& [heads, dim] : {std::pair{1, 32}, {3, 64}, {32, 128}}) {
    IndexFixture f({.heads = heads, .dim = dim, .entries = 70, .sequences = 2, .rows = 3}, 11 + heads);
    for (int64_t row = 0; row < 3; ++row) {
      float scores[70];
      std::fill(scores, scores + 70, kNan);
      IndexScoreReference(f.params, row, 0, 70, scores);
      for (int64_t e = 0; e < 70; ++e) {
        const Oracle o = Float64Score(f.params, row, e);
        // One rounding per block, per head: (blocks + heads) * 2^-24 of the magnitudes, block sums being
        // exact.
        EXPECT_LE(std::abs(scores[e] - o.score), (dim / 32 + heads) * 0x1p-24 * o.magnitude) << row << " " << e;
      }
    }
  }
}

TEST(IndexScore, EveryKernelMatchesTheReferenceBitForBit) {
  struct Case {
    IndexShape shape;
    int scale_low, scale_high;
  };
  const Case cases[] = {
      {{.heads = 1, .dim = 32, .entries = 1, .entries_per_page = 32}, 127, 127},
      {{.heads = 5, .dim = 96, .entries = 203, .sequences = 3, .rows = 4, .entries_per_page = 64}, 120, 130},
      {{.heads = 4, .dim = 32, .entries = 77, .rows = 2, .entries_per_page = 24}, 100, 140},
      {{.heads = 32, .dim = 128, .entries = 301, .sequences = 2, .rows = 3, .entries_per_page = 128}, 120, 130},
      {{.heads = 7, .dim = 64, .entries = 130, .rows = 2, .entries_per_page = 64}, 0, 255},  // NaN, under- and overflow
      {{.heads = 6, .dim = 256, .entries = 65, .rows = 1, .entries_per_page = 64}, 0, 20},
  };
  uint64_t seed = 100;
  for (const Case& c : cases) {
    IndexFixture f(c.shape, ++seed, c.scale_low, c.scale_high);
    std::mt19937_64 random(seed);
    for (int64_t row = 0; row < c.shape.rows; ++row) {
      const int64_t begin = static_cast<int64_t>(random() % static_cast<uint64_t>(c.shape.entries));
      const int64_t count = c.shape.entries - begin;
      std::vector<int32_t> list;
      for (int64_t i = 0; i < count; ++i)
        list.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(c.shape.entries)));
      std::vector<float> want(static_cast<size_t>(count)), want_list(static_cast<size_t>(count));
      IndexScoreReference(f.params, row, begin, count, want.data());
      IndexScoreListReference(f.params, row, list.data(), count, want_list.data());
      ForEachTarget([&] {
        std::vector<float> got(static_cast<size_t>(count + 1), kNan), got_list(got);
        got.back() = got_list.back() = 12345.0f;  // must survive
        IndexScoreCpu(f.params, row, begin, count, got.data());
        IndexScoreListCpu(f.params, row, list.data(), count, got_list.data());
        for (size_t i = 0; i < want.size(); ++i) {
          EXPECT_EQ(Bits(got[i]), Bits(want[i])) << "row " << row << " key " << begin + static_cast<int64_t>(i);
          EXPECT_EQ(Bits(got_list[i]), Bits(want_list[i])) << "row " << row << " key " << list[i];
        }
        EXPECT_EQ(got.back(), 12345.0f);
        EXPECT_EQ(got_list.back(), 12345.0f);
      });
    }
  }
}

TEST(IndexScore, LargestIntegersDoNotOverflow) {
  IndexFixture f({.heads = 2, .dim = 128, .entries = 64, .entries_per_page = 64}, 5, 127, 127);
  for (const uint8_t q : {0x77, 0xFF}) {
    for (const uint8_t k : {0x77, 0xFF}) {
      std::fill(f.q_values.begin(), f.q_values.end(), q);
      for (int64_t e = 0; e < 64; ++e) std::fill_n(f.params.entries.KeyValues(f.sequence_kv[0], e), 64, k);
      const double dot = q == k ? 128 * 36.0 : 0.0;
      const float want = std::fma(f.weights[1], static_cast<float>(dot), f.weights[0] * static_cast<float>(dot));
      ForEachTarget([&] {
        std::vector<float> got(64, kNan);
        IndexScoreCpu(f.params, 0, 0, 64, got.data());
        for (float s : got) EXPECT_EQ(s, want);
      });
    }
  }
}

TEST(IndexScore, NanInAQueryReachesTheScore) {
  IndexFixture f({.heads = 3, .dim = 64, .entries = 40}, 6);
  f.q_scales[3] = 255;
  ForEachTarget([&] {
    std::vector<float> got(40, 0.0f);
    IndexScoreCpu(f.params, 0, 0, 40, got.data());
    for (float s : got) EXPECT_TRUE(std::isnan(s));
  });
}

TEST(IndexQuery, RotatesThenQuantises) {
  ThreadPool pool(3);
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  for (const bool round : {false, true}) {
    const int64_t rows = 5, heads = 3, dim = 96, rope_dim = 64;
    std::vector<float> q(rows * heads * dim), rope(rows * rope_dim);
    for (float& x : q) x = round ? numerics::RoundToBf16(normal(random)) : normal(random);
    for (int64_t i = 0; i < rows * rope_dim / 2; ++i) {
      const double angle = 3.0 * normal(random);
      rope[static_cast<size_t>(2 * i)] = static_cast<float>(std::cos(angle));
      rope[static_cast<size_t>(2 * i + 1)] = static_cast<float>(std::sin(angle));
    }
    IndexQueryParams p{rows, heads, dim, rope_dim, q.data(), rope.data(), round, nullptr, nullptr};
    std::vector<uint8_t> values(rows * heads * dim / 2, 0xEE), scales(rows * heads * dim / 32, 0xEE);
    p.values = values.data();
    p.scales = scales.data();
    IndexQueryReference(p, pool);
    int64_t unlike = 0;
    for (int64_t i = 0; i < rows * heads; ++i) {
      for (int64_t b = 0; b < dim / 32; ++b) {
        float block[32], want[32];
        numerics::DequantiseFp4(values.data() + (i * dim + b * 32) / 2, scales[static_cast<size_t>(i * 3 + b)], block);
        float top = 0;
        for (int64_t d = 0; d < 32; ++d) {
          const int64_t at = b * 32 + d;
          double x = q[static_cast<size_t>(i * dim + at)];
          if (at >= dim - rope_dim) {
            const int64_t pair = (at - (dim - rope_dim)) / 2;
            const size_t even = static_cast<size_t>(i * dim + (dim - rope_dim) + 2 * pair);
            const double c = rope[static_cast<size_t>(i / heads * rope_dim + 2 * pair)];
            const double s = rope[static_cast<size_t>(i / heads * rope_dim + 2 * pair + 1)];
            x = at % 2 == 0 ? q[even] * c - q[even + 1] * s : q[even] * s + q[even + 1] * c;
          }
          want[d] = static_cast<float>(x);
          top = std::max(top, std::abs(want[d]));
        }
        // Half a step of the coarsest part of the grid (4 .. 6, step 2) at the largest scale the block may
        // get.
        const float step = 2.0f * std::exp2(std::ceil(std::log2(top / 6.0f) + 0.02f));
        for (int64_t d = 0; d < 32; ++d) {
          EXPECT_LE(std::abs(block[d] - want[d]), 0.51f * step);
          unlike += std::abs(block[d] - want[d]) > 0.26f * std::abs(want[d]) + 0.25f * step;
        }
      }
    }
    EXPECT_LT(unlike,
              20);  // rounding to e2m1 moves a value by a quarter of itself at most, near zero by a half step
    std::vector<uint8_t> cpu_values(values.size(), 0xEE), cpu_scales(scales.size(), 0xEE);
    p.values = cpu_values.data();
    p.scales = cpu_scales.data();
    IndexQueryCpu(p, pool);
    EXPECT_EQ(cpu_values, values);
    EXPECT_EQ(cpu_scales, scales);
  }
}

}  // namespace
}  // namespace senko::ops
