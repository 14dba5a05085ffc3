#include "ops/attention/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "numerics/bf16.h"
#include "ops/attention/attention_test_world.h"
#include "ops/each_target.h"

namespace senko::ops {
namespace {

using testing::Rows;
using testing::RowSpec;
using testing::Shape;
using testing::World;
using testing::WorldSpec;

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<float> Part(const std::vector<float>& all, int64_t row, int64_t size) {
  return {all.begin() + row * size, all.begin() + (row + 1) * size};
}

// Shapes of the released model, of the small ones, and awkward ones: a window of several key blocks, heads
// that fill no register tile, a rotary part that is no multiple of a vector or the whole head.
const Shape kShapes[] = {
    {64, 512, 64, 128, 512}, {8, 64, 16, 16, 8},   {64, 512, 64, 128, 0}, {5, 96, 10, 300, 40},
    {1, 64, 64, 1, 1},       {3, 128, 2, 33, 150}, {20, 256, 64, 5, 129}, {17, 64, 32, 200, 0},
};

WorldSpec MixedBatch(const Shape& shape, bool round, uint32_t seed) {
  WorldSpec spec;
  spec.shape = shape;
  spec.seed = seed;
  spec.round_bf16 = round;
  const int64_t far = 2 * shape.window + 700;
  // A prompt's start, a chunk across the ring's end, and a lone decode row.
  for (const RowSpec& row : Rows(shape, 0, 0, 3, seed)) spec.rows.push_back(row);
  for (const RowSpec& row : Rows(shape, 1, shape.window + 1, 2, seed)) spec.rows.push_back(row);
  for (const RowSpec& row : Rows(shape, 2, far, 1, seed)) spec.rows.push_back(row);
  spec.first_new = {0, shape.window, far};
  return spec;
}

// Float mode. A score is a chain of `dim` fused multiply-adds whose partial sums stay within a few of
// |q||k| ~ 1.5 sqrt(dim): rounding errors of 2^-25 relative walk to about sqrt(dim) 2^-25 1.5 sqrt(dim) scale
// < 1e-6 for dim 512, which is the relative error of a weight, and the output is a weighted mean of values
// below 5. The bound leaves a factor of two.
constexpr double kFloatBound = 1e-5;

TEST(Attention, FloatModeIsWithinTheBoundOfTheReference) {
  uint32_t seed = 10;
  for (const Shape& shape : kShapes) {
    for (uint8_t poison : {0x7F, 0xFF}) {
      WorldSpec spec = MixedBatch(shape, false, ++seed);
      spec.poison = poison;
      World world(spec);
      const auto expected = world.Run(AttentionReference);
      ForEachTarget([&] {
        const auto got = world.Run(AttentionCpu);
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_TRUE(std::isfinite(expected[i]));
          ASSERT_NEAR(got[i], expected[i], kFloatBound) << "heads " << shape.heads << " dim " << shape.dim << " " << i;
        }
      });
    }
  }
}

// Rounding mode: a weight on a rounding boundary moves by 2^-8 of itself, an output by one bf16 step (2^-7 at
// most), and the inverse rotation mixes the pair and rounds again. Nearly every element must agree exactly.
TEST(Attention, RoundingModeDiffersOnlyAtRoundingBoundaries) {
  uint32_t seed = 50;
  for (const Shape& shape : kShapes) {
    World world(MixedBatch(shape, true, ++seed));
    const auto expected = world.Run(AttentionReference);
    const auto got = world.Run(AttentionCpu);
    size_t differ = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double pair = std::max(std::abs(expected[i]), std::abs(expected[i ^ 1]));
      ASSERT_NEAR(got[i], expected[i], 3 * 0x1p-7 * pair + 1e-4) << "heads " << shape.heads << " dim " << shape.dim;
      ASSERT_EQ(got[i], numerics::RoundToBf16(got[i]));
      differ += got[i] != expected[i];
    }
    EXPECT_LT(static_cast<double>(differ), 0.03 * static_cast<double>(got.size()) + 4) << "dim " << shape.dim;
  }
}

// The reference against the formula written another way: no maximum, long double, rotation as a complex
// product.
TEST(Attention, ReferenceIsTheFormula) {
  const Shape shape{4, 64, 16, 20, 12};
  WorldSpec spec;
  spec.shape = shape;
  spec.rows = Rows(shape, 0, 40, 3, 5);
  spec.first_new = {40};
  World world(spec);
  const auto got = world.Run(AttentionReference);
  const auto rotate = [&](std::vector<long double>& x, size_t row, long double sign) {
    for (size_t n = 0; n < 8; ++n) {
      const float* t = world.rope().data() + row * 16 + 2 * n;
      long double& a = x[48 + 2 * n];
      long double& b = x[49 + 2 * n];
      const long double re = a * t[0] - sign * b * t[1], im = sign * a * t[1] + b * t[0];
      a = re, b = im;
    }
  };
  for (size_t r = 0; r < 3; ++r) {
    const RowSpec& row = spec.rows[r];
    std::vector<std::vector<float>> keys;
    for (int64_t i = row.window_begin; i <= row.position; ++i) {
      std::vector<float> x = world.Latent(0, i, false);
      uint8_t codes[32], scale;
      for (size_t d = 0; d < 64; d += 32) {
        numerics::QuantiseFp8(&x[d], codes, &scale);
        numerics::DequantiseFp8(codes, scale, &x[d]);
      }
      keys.push_back(x);
    }
    for (int32_t e : row.selected) {
      std::vector<float> x = world.Latent(0, e, true);
      uint8_t packed[8], scale;
      for (size_t d = 0; d < 64; d += 16) {
        numerics::QuantiseFp4Block16(&x[d], packed, &scale);
        numerics::DequantiseFp4Block16(packed, scale, &x[d]);
      }
      keys.push_back(x);
    }
    ASSERT_EQ(keys.size(), 32u);
    for (size_t h = 0; h < 4; ++h) {
      std::vector<long double> q(64), sum(64, 0.0L);
      for (size_t d = 0; d < 64; ++d) q[d] = world.q()[(r * 4 + h) * 64 + d];
      rotate(q, r, 1);
      long double total = std::exp(static_cast<long double>(world.sink()[h]));
      for (const auto& key : keys) {
        long double dot = 0;
        for (size_t d = 0; d < 64; ++d) dot += q[d] * key[d];
        const long double weight = std::exp(dot / 8);
        total += weight;
        for (size_t d = 0; d < 64; ++d) sum[d] += weight * key[d];
      }
      for (long double& v : sum) v /= total;
      rotate(sum, r, -1);
      for (size_t d = 0; d < 64; ++d) {
        ASSERT_NEAR(got[(r * 4 + h) * 64 + d], static_cast<double>(sum[d]), 2e-6);
      }
    }
  }
}

// Every output is one chain of fused multiply-adds and every reduction the canonical tree, so the vector
// width is not seen either.
TEST(Attention, Avx2AndAvx512GiveTheSameBits) {
  World world(MixedBatch({12, 128, 64, 130, 33}, true, 70));
  std::vector<std::vector<float>> results;
  ForEachTarget([&] {
    const int64_t target = hwy::SupportedTargets();
    if ((target & (HWY_AVX2 | HWY_AVX3)) != 0) results.push_back(world.Run(AttentionCpu));
  });
  for (const auto& result : results) ASSERT_TRUE(SameBits(results[0], result));
}

TEST(Attention, ARowsBitsDependOnNeitherBatchNorThreads) {
  for (const Shape& shape : {Shape{8, 64, 16, 40, 70}, Shape{12, 128, 64, 130, 33}}) {
    WorldSpec spec;
    spec.shape = shape;
    spec.round_bf16 = true;
    spec.rows = Rows(shape, 0, 150, 9, 3);
    for (const RowSpec& row : Rows(shape, 1, 12, 4, 3)) spec.rows.push_back(row);
    spec.first_new = {150, 12};
    World world(spec);
    const auto all = world.Run(AttentionCpu, 1);
    for (int threads : {2, 3, 4, 7, 16}) ASSERT_TRUE(SameBits(all, world.Run(AttentionCpu, threads))) << threads;
    for (size_t r = 0; r < spec.rows.size(); ++r) {
      WorldSpec alone = spec;
      alone.rows = {spec.rows[r]};
      World lone(alone);
      for (int threads : {1, 3}) {
        ASSERT_TRUE(
            SameBits(Part(all, static_cast<int64_t>(r), shape.heads * shape.dim), lone.Run(AttentionCpu, threads)))
            << "row " << r << " threads " << threads;
      }
    }
  }
}

// The same rows with the boundary between ring and staging anywhere, the ring wrapping around, for a chunk
// longer than the ring too.
TEST(Attention, RingAndStagingGiveTheSameBits) {
  const Shape shape{8, 64, 16, 20, 6};
  WorldSpec spec;
  spec.shape = shape;
  spec.rows = Rows(shape, 0, 60, 50, 8);
  spec.first_new = {30};
  const auto expected = World(spec).Run(AttentionCpu);
  for (int64_t first_new : {41, 50, 55, 60}) {
    spec.first_new = {first_new};
    ASSERT_TRUE(SameBits(expected, World(spec).Run(AttentionCpu))) << first_new;
  }
  WorldSpec decode = spec;  // everything but the row itself in the ring
  decode.rows = {spec.rows[40]};
  decode.first_new = {100};
  for (int64_t ring : {20, 32, 48}) {
    decode.ring_rows = ring;
    ASSERT_TRUE(SameBits(Part(expected, 40, 8 * 64), World(decode).Run(AttentionCpu))) << ring;
  }
}

TEST(Attention, WindowBeginCutsTheWindow) {
  const Shape shape{8, 64, 16, 20, 6};
  WorldSpec spec;
  spec.shape = shape;
  spec.rows = Rows(shape, 0, 60, 2, 8);
  spec.first_new = {60};
  const auto whole = World(spec).Run(AttentionCpu);
  for (RowSpec& row : spec.rows) row.window_begin = row.position - 3;
  World cut(spec);
  const auto got = cut.Run(AttentionCpu);
  const auto expected = cut.Run(AttentionReference);
  EXPECT_FALSE(SameBits(whole, got));
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], kFloatBound);
}

TEST(Attention, AnEmptySelectionIsAWindowOnlyLayer) {
  Shape shape{8, 64, 16, 20, 6};
  WorldSpec spec;
  spec.shape = shape;
  spec.rows = Rows(shape, 0, 60, 3, 8);
  for (RowSpec& row : spec.rows) row.selected.clear();
  spec.first_new = {60};
  for (auto op : {AttentionReference, AttentionCpu}) {
    spec.shape.topk = 6;
    const auto empty = World(spec).Run(op);
    spec.shape.topk = 0;
    ASSERT_TRUE(SameBits(empty, World(spec).Run(op)));
  }
}

// A row that sees nothing gives zero: the contract's own corner, which no step makes.
TEST(Attention, NoKeyGivesZero) {
  WorldSpec spec;
  spec.shape = {8, 64, 16, 20, 0};
  spec.rows = {{0, 60, 61, {}}};
  spec.first_new = {60};
  for (auto op : {AttentionReference, AttentionCpu}) {
    for (float value : World(spec).Run(op)) ASSERT_EQ(value, 0.0f);
  }
}

TEST(Attention, ANanStaysInItsRowAndHead) {
  const Shape shape{8, 64, 16, 20, 6};
  WorldSpec spec;
  spec.shape = shape;
  spec.rows = Rows(shape, 0, 60, 5, 8);
  spec.first_new = {60};
  World world(spec);
  const auto clean = world.Run(AttentionCpu);
  for (float bad : {std::nanf(""), INFINITY}) {
    world.q()[2 * 8 * 64 + 3 * 64 + 7] = bad;  // row 2, head 3
    for (int threads : {1, 8}) {
      const auto got = world.Run(AttentionCpu, threads);
      for (size_t i = 0; i < got.size(); ++i) {
        if (i / 64 == 2 * 8 + 3) {
          ASSERT_TRUE(std::isnan(got[i])) << i;
        } else {
          ASSERT_EQ(got[i], clean[i]) << i;
        }
      }
    }
    const auto reference = world.Run(AttentionReference);
    EXPECT_TRUE(std::isnan(reference[(2 * 8 + 3) * 64]));
  }
}

// Sinks from far below to far above the scores: the weight of the keys goes from all to nothing.
TEST(Attention, ExtremeSinks) {
  const Shape shape{8, 64, 16, 20, 6};
  WorldSpec spec;
  spec.shape = shape;
  spec.rows = Rows(shape, 0, 60, 2, 8);
  spec.first_new = {60};
  World world(spec);
  AttentionParams p = world.Params();
  const float sinks[8] = {-INFINITY, -1e30f, -200, -20, 20, 80, 200, 1e30f};
  p.sink = sinks;
  std::vector<float> expected(world.q().size(), NAN), got(expected);
  ThreadPool pool(2);
  p.out = expected.data();
  AttentionReference(p, pool);
  p.out = got.data();
  AttentionCpu(p, pool);
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], kFloatBound);
  EXPECT_EQ(got[7 * 64], 0.0f);
}

}  // namespace
}  // namespace senko::ops
