// ExpertsCpu against ExpertsReference: routings of every kind, formats, bits.
#include "ops/experts/experts.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "gtest/gtest.h"
#include "numerics/bf16.h"
#include "ops/experts/swiglu.h"
#include "ops/linear/linear_test_util.h"

namespace senko::ops {
namespace {

using test::Poisoned;
using test::RandomFloats;
using test::Weight;

struct Case {
  int64_t rows = 1, hidden = 96, inter = 64, shared_inter = 64, num_experts = 8, topk = 3;
  WeightFormat routed = WeightFormat::kFp4, shared = WeightFormat::kFp8;
  bool same_experts = false;
  float limit = 10.0f;
};

// A layer's weights and a routing, with what the params point to.
struct Layer {
  Case c;
  std::vector<Weight> weights;
  std::vector<ExpertWeights> experts;
  ExpertWeights shared;
  std::vector<float> x, route_weights;
  std::vector<int32_t> ids;

  Layer(const Case& choice, std::mt19937& random) : c(choice) {
    for (int64_t e = 0; e <= c.num_experts; ++e) {
      const bool last = e == c.num_experts;
      const int64_t inter = last ? std::max<int64_t>(c.shared_inter, 32) : c.inter;
      for (int i = 0; i < 3; ++i) {
        const int64_t out = i == 2 ? c.hidden : inter, in = i == 2 ? inter : c.hidden;
        weights.emplace_back(last ? c.shared : c.routed, out, in, random);
      }
    }
    for (int64_t e = 0; e <= c.num_experts; ++e) {
      const ExpertWeights views = {weights[3 * e].view, weights[3 * e + 1].view, weights[3 * e + 2].view};
      if (e == c.num_experts)
        shared = views;
      else
        experts.push_back(views);
    }
    x = RandomFloats(c.rows * c.hidden, random);
    for (float& value : x) value = numerics::RoundToBf16(value * 0.25f);
    route_weights = RandomFloats(c.rows * c.topk, random);
    for (int64_t r = 0; r < c.rows; ++r) {
      std::vector<int32_t> order(c.num_experts);
      std::iota(order.begin(), order.end(), 0);
      if (!c.same_experts) std::shuffle(order.begin(), order.end(), random);
      ids.insert(ids.end(), order.begin(), order.begin() + c.topk);
    }
  }

  // The dispatch lists of rows [row0, row0 + rows): rows ascending inside an expert.
  void Dispatch(int64_t row0, int64_t rows, std::vector<int32_t>& begin, std::vector<int32_t>& pairs) const {
    begin.assign(1, 0);
    pairs.clear();
    for (int64_t e = 0; e < c.num_experts; ++e) {
      for (int64_t i = 0; i < rows * c.topk; ++i) {
        if (ids[row0 * c.topk + i] == e) pairs.push_back(static_cast<int32_t>(i));
      }
      begin.push_back(static_cast<int32_t>(pairs.size()));
    }
  }

  std::vector<float> Run(void (*op)(const ExpertsParams&, ThreadPool&), int64_t row0, int64_t rows, bool round,
                         ThreadPool& pool) const {
    std::vector<int32_t> begin, pairs;
    Dispatch(row0, rows, begin, pairs);
    Buffer<float> scratch(ExpertsScratchFloats(rows, c.topk, c.hidden, c.inter, c.shared_inter));
    std::fill(scratch.data(), scratch.data() + scratch.size(), std::numeric_limits<float>::quiet_NaN());
    std::vector<float> y = Poisoned(rows * c.hidden);
    ExpertsParams p;
    p.rows = rows;
    p.hidden = c.hidden;
    p.inter = c.inter;
    p.shared_inter = c.shared_inter;
    p.num_experts = c.num_experts;
    p.topk = c.topk;
    p.x = x.data() + row0 * c.hidden;
    p.experts = experts.data();
    p.shared = shared;
    p.route_weights = route_weights.data() + row0 * c.topk;
    p.dispatch = {begin.data(), pairs.data()};
    p.swiglu_limit = c.limit;
    p.round_bf16 = round;
    p.round_activations = round;
    p.scratch = scratch.data();
    p.y = y.data();
    op(p, pool);
    return y;
  }
};

double Rms(const std::vector<float>& x) {
  double sum = 0;
  for (float value : x) sum += static_cast<double>(value) * value;
  return std::sqrt(sum / static_cast<double>(x.size()));
}

// Without rounding points the whole is smooth: each of the two layers of dot products contributes about
// 150 * 2^-24 of its magnitude sum, which random signs leave some 10 times the result's rms; 1e-4 of the rms covers
// both. With them, a value next to a rounding boundary may land on the other side: one bf16 step of h, out or y, or one
// e4m3 step in front of w2. Almost all stay, so the rms of the difference is bounded by 2^-9 of the result's rms. The
// e4m3 step is the largest: 2^-3 of an h of five times its rms, times a weight of 2.5 times its own, is 0.2 of the rms
// of a sum over 64 of them; each value is bounded by 2^-2.
void CheckAgainstReference(const Case& c, ThreadPool& pool) {
  SCOPED_TRACE("rows " + std::to_string(c.rows) + " experts " + std::to_string(c.num_experts) + " topk " +
               std::to_string(c.topk) + " hidden " + std::to_string(c.hidden) + " inter " + std::to_string(c.inter) +
               " " + test::Name(c.routed) + " shared " + std::to_string(c.shared_inter));
  std::mt19937 random(std::random_device{}());
  const Layer layer(c, random);
  for (bool round : {false, true}) {
    const std::vector<float> want = layer.Run(ExpertsReference, 0, c.rows, round, pool);
    const std::vector<float> got = layer.Run(ExpertsCpu, 0, c.rows, round, pool);
    const double rms = Rms(want);
    std::vector<float> difference(want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      difference[i] = got[i] - want[i];
      ASSERT_LE(std::fabs(difference[i]), rms * (round ? 0x1p-2 : 1e-4)) << i << " round " << round;
    }
    ASSERT_LE(Rms(difference), rms * (round ? 0x1p-9 : 1e-4)) << "round " << round;
  }
}

TEST(Experts, MatchTheReference) {
  ThreadPool pool(2);
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    const test::OnTarget on(target);
    SCOPED_TRACE(hwy::TargetName(target));
    for (int64_t rows : {1, 2, 7, 33}) CheckAgainstReference({.rows = rows}, pool);
    CheckAgainstReference({.rows = 5, .topk = 1}, pool);
    CheckAgainstReference({.rows = 3, .num_experts = 40, .topk = 2}, pool);  // most experts without rows
    CheckAgainstReference({.rows = 40, .num_experts = 6, .topk = 6, .same_experts = true}, pool);
    CheckAgainstReference({.rows = 24, .topk = 2, .same_experts = true}, pool);
    CheckAgainstReference({.rows = 6, .shared_inter = 0}, pool);
    CheckAgainstReference({.rows = 6, .limit = 0.0f}, pool);
    CheckAgainstReference({.rows = 6, .limit = 0.125f}, pool);
    CheckAgainstReference({.rows = 9, .hidden = 1056, .inter = 544, .shared_inter = 160}, pool);
    for (WeightFormat f : {WeightFormat::kFp8, WeightFormat::kBf16, WeightFormat::kF32}) {
      CheckAgainstReference({.rows = 9, .routed = f, .shared = WeightFormat::kFp4}, pool);
    }
  }
}

TEST(Experts, ALongListIsCutIntoPiecesAndWaves) {
  ThreadPool pool(2);
  CheckAgainstReference({.rows = 530, .hidden = 1120, .inter = 32, .num_experts = 2, .topk = 1, .same_experts = true},
                        pool);
}

TEST(Experts, ARowDoesNotDependOnBatchThreadsOrTarget) {
  std::mt19937 random(std::random_device{}());
  for (bool same : {false, true}) {
    const Case c = {.rows = 45, .hidden = 160, .inter = 96, .same_experts = same};
    const Layer layer(c, random);
    std::vector<float> avx[2];
    for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
      const test::OnTarget on(target);
      SCOPED_TRACE(hwy::TargetName(target));
      ThreadPool one(1), three(3);
      std::vector<float> alone;
      for (int64_t r = 0; r < c.rows; ++r) {
        const std::vector<float> y = layer.Run(ExpertsCpu, r, 1, true, one);
        alone.insert(alone.end(), y.begin(), y.end());
      }
      for (ThreadPool* pool : {&one, &three}) {
        for (int64_t rows : {2, 9, 45}) {
          const std::vector<float> y = layer.Run(ExpertsCpu, 0, rows, true, *pool);
          ASSERT_TRUE(test::SameBits(y.data(), alone.data(), rows * c.hidden)) << rows;
        }
      }
      if (target == HWY_AVX2) avx[0] = alone;
      if (target == HWY_AVX3) avx[1] = alone;
    }
    if (!avx[0].empty() && !avx[1].empty()) {
      EXPECT_EQ(avx[0], avx[1]);
    }
  }
}

TEST(Experts, ScratchDependsOnTheStepOnlyAndCoversSmallerSteps) {
  for (int64_t rows = 1; rows <= 1024; rows += 7) {
    EXPECT_LE(ExpertsScratchFloats(rows, 6, 5120, 2304, 2304), ExpertsScratchFloats(rows + 7, 6, 5120, 2304, 2304));
  }
}

TEST(Swiglu, ClampsAndKeepsNaN) {
  for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
    const test::OnTarget on(target);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float g[5] = {20.0f, -3.0f, nan, 1.0f, 0.5f}, u[5] = {-30.0f, 2.0f, 1.0f, nan, 99.0f};
    float y[7];
    std::fill(y, y + 7, nan);
    SwigluRow(g, u, 5, 10.0f, 0.5f, false, y);
    const auto want = [](double gate, double up) { return 0.5 * gate / (1 + std::exp(-gate)) * up; };
    EXPECT_NEAR(y[0], want(10, -10), 1e-5 * 50);
    EXPECT_NEAR(y[1], want(-3, 2), 1e-6);
    EXPECT_TRUE(std::isnan(y[2]) && std::isnan(y[3]) && std::isnan(y[5]) && std::isnan(y[6]));
    EXPECT_NEAR(y[4], want(0.5, 10), 1e-5);
    SwigluRow(g, u, 1, 0.0f, 1.0f, false, y);
    EXPECT_NEAR(y[0], -600.0, 1e-3);
  }
}

}  // namespace
}  // namespace senko::ops
