#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "numerics/bf16.h"
#include "ops/kv_write/kv_write.h"

namespace senko::ops {
namespace {

constexpr int64_t kPendingOffset = 512;

// A sequence of `tokens` tokens' c and z, compressed in one step or with the pending pair carried over.
struct Rig {
  int64_t dim;
  std::vector<float> c, z, weight;
  std::vector<uint8_t> slot;
  SequenceKv sequence;

  Rig(int64_t d, int64_t tokens, uint32_t seed, float z_spread = 2.0f)
      : dim(d),
        c(static_cast<size_t>(tokens * d)),
        z(c.size()),
        weight(static_cast<size_t>(d)),
        slot(static_cast<size_t>(kPendingOffset + 2 * d * 4), 0xFF) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (float& v : c) v = normal(random);
    for (float& v : z) v = z_spread * normal(random);
    for (float& v : weight) v = 1.0f + 0.2f * normal(random);
    sequence.slot = slot.data();
  }

  CompressParams Params(const std::vector<LatentRef>& latents, int ratio, bool round, std::vector<float>& out) const {
    out.assign(latents.size() * static_cast<size_t>(dim), std::nanf(""));
    CompressParams p;
    p.count = static_cast<int64_t>(latents.size());
    p.latents = latents.data();
    p.ratio = ratio;
    p.dim = dim;
    p.c = c.data();
    p.z = ratio == 2 ? z.data() : nullptr;
    p.sequences = &sequence;
    p.pending_offset = kPendingOffset;
    p.norm_weight = weight.data();
    p.rms_eps = 1e-20f;
    p.round_bf16 = round;
    p.out = out.data();
    return p;
  }
};

std::vector<LatentRef> Pairs(int64_t count) {
  std::vector<LatentRef> latents;
  for (int64_t j = 0; j < count; ++j) latents.push_back({0, j, 2 * j + 1, 2 * j});
  return latents;
}

// The formula in long double. One rounding of the pooled sum, one of the result.
std::vector<double> Expected(const Rig& rig, int64_t pair, bool round) {
  std::vector<long double> pooled(static_cast<size_t>(rig.dim));
  long double squares = 0;
  for (int64_t d = 0; d < rig.dim; ++d) {
    const auto a = static_cast<size_t>(2 * pair * rig.dim + d), b = a + static_cast<size_t>(rig.dim);
    const long double gate = 1 / (1 + std::exp(static_cast<long double>(rig.z[b]) - rig.z[a]));
    long double sum = gate * rig.c[a] + (1 - gate) * rig.c[b];
    if (round) sum = numerics::RoundToBf16(static_cast<float>(sum));
    pooled[static_cast<size_t>(d)] = sum;
    squares += sum * sum;
  }
  std::vector<double> out;
  for (int64_t d = 0; d < rig.dim; ++d) {
    out.push_back(static_cast<double>(rig.weight[static_cast<size_t>(d)] * pooled[static_cast<size_t>(d)] /
                                      std::sqrt(squares / rig.dim + 1e-20L)));
  }
  return out;
}

TEST(Compress, BothFollowTheFormulaInFloatMode) {
  for (int64_t dim : {32, 64, 512}) {
    for (float spread : {0.1f, 2.0f, 60.0f}) {
      const Rig rig(dim, 8, static_cast<uint32_t>(dim), spread);
      std::vector<float> out;
      ThreadPool pool(2);
      const auto latents = Pairs(4);
      for (auto op : {CompressReference, CompressCpu}) {
        op(rig.Params(latents, 2, false, out), pool);
        for (int64_t j = 0; j < 4; ++j) {
          const auto expected = Expected(rig, j, false);
          for (int64_t d = 0; d < dim; ++d) {
            // Weights are within 4 ulp; their products may cancel, so the bound is of the pair's magnitude (<
            // 10).
            ASSERT_NEAR(out[static_cast<size_t>(j * dim + d)], expected[static_cast<size_t>(d)], 10 * 0x1p-21);
          }
        }
      }
    }
  }
}

TEST(Compress, RoundsThePooledSumAndTheResult) {
  const Rig rig(512, 64, 77);
  std::vector<float> reference, fast;
  ThreadPool pool(2);
  const auto latents = Pairs(32);
  CompressReference(rig.Params(latents, 2, true, reference), pool);
  CompressCpu(rig.Params(latents, 2, true, fast), pool);
  size_t differ = 0;
  for (int64_t j = 0; j < 32; ++j) {
    const auto expected = Expected(rig, j, true);
    for (int64_t d = 0; d < 512; ++d) {
      const auto i = static_cast<size_t>(j * 512 + d);
      ASSERT_EQ(fast[i], numerics::RoundToBf16(fast[i]));
      // Half a bf16 step of the final rounding, in the fast path another step where the pooled sum flips.
      ASSERT_LE(std::abs(reference[i] - expected[static_cast<size_t>(d)]), 0x1.01p-8 * std::abs(reference[i]));
      ASSERT_LE(std::abs(fast[i] - reference[i]), 0x1p-6f * std::abs(reference[i]) + 1e-30f);
      differ += fast[i] != reference[i];
    }
  }
  EXPECT_LT(differ, fast.size() / 100);
}

// The same bits whether the group's first token came in this step or waits in the slot.
TEST(Compress, ThePendingPairGivesTheSameBits) {
  for (bool round : {false, true}) {
    Rig rig(512, 2, 5);
    std::vector<float> together, carried;
    ThreadPool pool(1);
    for (auto op : {CompressReference, CompressCpu}) {
      const std::vector<LatentRef> same_step = {{0, 0, 1, 0}};
      op(rig.Params(same_step, 2, round, together), pool);
      std::memcpy(rig.slot.data() + kPendingOffset, rig.c.data(), 512 * 4);
      std::memcpy(rig.slot.data() + kPendingOffset + 512 * 4, rig.z.data(), 512 * 4);
      Rig second = rig;  // this step holds only the second token
      second.sequence.slot = second.slot.data();
      second.c.erase(second.c.begin(), second.c.begin() + 512);
      second.z.erase(second.z.begin(), second.z.begin() + 512);
      const std::vector<LatentRef> next_step = {{0, 0, 0, -1}};
      op(second.Params(next_step, 2, round, carried), pool);
      EXPECT_EQ(0, std::memcmp(together.data(), carried.data(), 512 * 4));
      std::fill(rig.slot.begin(), rig.slot.end(), uint8_t{0xFF});
    }
  }
}

TEST(Compress, ExtremeGatesChooseOneToken) {
  Rig rig(32, 2, 6);
  for (size_t d = 0; d < 32; ++d) {
    rig.z[d] = d % 2 == 0 ? 1e30f : -1e30f;
    rig.z[32 + d] = -rig.z[d];
  }
  std::vector<float> out, chosen(32);
  ThreadPool pool(1);
  const std::vector<LatentRef> latents = {{0, 0, 1, 0}};
  double squares = 0;
  for (size_t d = 0; d < 32; ++d) {
    chosen[d] = rig.c[d % 2 == 0 ? d : 32 + d];
    squares += double{chosen[d]} * double{chosen[d]};
  }
  for (auto op : {CompressReference, CompressCpu}) {
    op(rig.Params(latents, 2, false, out), pool);
    for (size_t d = 0; d < 32; ++d) {
      EXPECT_NEAR(out[d], rig.weight[d] * chosen[d] / std::sqrt(squares / 32), 1e-6);
    }
  }
}

TEST(Compress, RatioOneIsTheNormAlone) {
  const Rig rig(64, 3, 9);
  std::vector<float> out;
  ThreadPool pool(1);
  const std::vector<LatentRef> latents = {{0, 7, 2, -1}, {0, 5, 0, -1}};
  for (auto op : {CompressReference, CompressCpu}) {
    op(rig.Params(latents, 1, false, out), pool);
    for (size_t i = 0; i < 2; ++i) {
      const size_t row = i == 0 ? 2 : 0;
      double squares = 0;
      for (size_t d = 0; d < 64; ++d) squares += std::pow(double{rig.c[row * 64 + d]}, 2);
      for (size_t d = 0; d < 64; ++d) {
        EXPECT_NEAR(out[i * 64 + d], rig.weight[d] * rig.c[row * 64 + d] / std::sqrt(squares / 64), 2e-6);
      }
    }
  }
}

TEST(Compress, ANanStaysInItsLatent) {
  for (bool in_gate : {false, true}) {
    Rig rig(64, 6, 10);
    (in_gate ? rig.z : rig.c)[2 * 64 + 9] = std::nanf("");
    std::vector<float> out;
    ThreadPool pool(1);
    const auto latents = Pairs(3);
    for (auto op : {CompressReference, CompressCpu}) {
      op(rig.Params(latents, 2, true, out), pool);
      for (size_t d = 0; d < 64; ++d) {
        EXPECT_TRUE(std::isfinite(out[d]));
        EXPECT_TRUE(std::isnan(out[64 + d]));
        EXPECT_TRUE(std::isfinite(out[128 + d]));
      }
    }
  }
}

}  // namespace
}  // namespace senko::ops
