// Routing against a brute force in float64; dispatch lists against their definition.
#include "ops/router/router.h"

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

struct Routing {
  int64_t rows, experts, hidden, topk;
  std::vector<float> x, bias, bias_vl, scores, weights;
  std::vector<uint16_t> gate;
  std::vector<uint8_t> is_image;
  std::vector<int32_t> ids;
  RouterParams params;

  Routing(int64_t rows_in, int64_t experts_in, int64_t hidden_in, int64_t topk_in, float gain, uint64_t seed)
      : rows(rows_in), experts(experts_in), hidden(hidden_in), topk(topk_in) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& v, int64_t n, float scale) {
      v.resize(static_cast<size_t>(n));
      for (float& f : v) f = scale * normal(random);
    };
    fill(x, rows * hidden, 1);
    for (float& f : x) f = numerics::RoundToBf16(f);
    fill(bias, experts, 0.3f);
    fill(bias_vl, experts, 0.3f);
    for (int64_t i = 0; i < experts * hidden; ++i) {
      gate.push_back(numerics::FloatToBf16(gain * normal(random) / std::sqrt(static_cast<float>(hidden))));
    }
    for (int64_t r = 0; r < rows; ++r) is_image.push_back(random() % 3 == 0);
    params.rows = rows;
    params.num_experts = experts;
    params.topk = topk;
    params.x = x.data();
    params.gate = {WeightFormat::kBf16, experts, hidden, reinterpret_cast<const uint8_t*>(gate.data()), nullptr};
    params.bias = bias.data();
    params.bias_vl = bias_vl.data();
    params.is_image = is_image.data();
    params.scaling = 1.5f;
    Poison();
  }

  void Poison() {
    scores.assign(static_cast<size_t>(rows * experts), kNan);
    weights.assign(static_cast<size_t>(rows * topk), kNan);
    ids.assign(static_cast<size_t>(rows * topk), -5);
    params.scores = scores.data();
    params.weights = weights.data();
    params.ids = ids.data();
  }
};

// model.md 3.8 for one row, its own gate dot products included. A selection may differ from it only between
// experts whose biased scores lie within `slack` of each other.
void CheckRow(const Routing& r, int64_t row, double ulps) {
  const size_t experts = static_cast<size_t>(r.experts), topk = static_cast<size_t>(r.topk);
  const auto& bias = r.is_image[static_cast<size_t>(row)] != 0 ? r.bias_vl : r.bias;
  std::vector<double> score(experts), error(experts);
  for (size_t e = 0; e < experts; ++e) {
    double z = 0, size = 0;
    for (int64_t c = 0; c < r.hidden; ++c) {
      const double term = double{r.x[static_cast<size_t>(row * r.hidden + c)]} *
                          numerics::Bf16ToFloat(r.gate[e * static_cast<size_t>(r.hidden) + static_cast<size_t>(c)]);
      z += term;
      size += std::abs(term);
    }
    z /= r.params.temperature;
    score[e] = std::sqrt(z > 20 ? z : std::log1p(std::exp(z)));
    // d score / dz = sigmoid(z) / (2 score) <= min(1/2, score / 2 ...): bounded by 1/2 for every z.
    error[e] = ulps * 0x1p-24 * size / r.params.temperature / 2 + 6 * 0x1p-24 * score[e];
    EXPECT_NEAR(r.scores[static_cast<size_t>(row) * experts + e], score[e], error[e]) << "z " << z;
  }
  std::vector<bool> taken(experts, false);
  double sum = 0;
  for (size_t k = 0; k < topk; ++k) {
    const int32_t id = r.ids[static_cast<size_t>(row) * topk + k];
    ASSERT_TRUE(id >= 0 && id < r.experts && !taken[static_cast<size_t>(id)]);
    for (size_t e = 0; e < experts; ++e) {
      if (taken[e] || e == static_cast<size_t>(id)) continue;
      const double gap = (score[e] + bias[e]) - (score[static_cast<size_t>(id)] + bias[static_cast<size_t>(id)]);
      // Equal operands tie exactly, and then the lower id must have won.
      const double slack = error[e] + error[static_cast<size_t>(id)] + 0x1p-22 * (1 + std::abs(score[e]));
      EXPECT_LE(gap, slack) << "row " << row << " slot " << k << " took " << id << " before " << e;
    }
    taken[static_cast<size_t>(id)] = true;
    sum += score[static_cast<size_t>(id)];
  }
  for (size_t k = 0; k < topk; ++k) {
    const size_t id = static_cast<size_t>(r.ids[static_cast<size_t>(row) * topk + k]);
    const double want = 1.5 * score[id] / (r.params.normalise && topk > 1 ? sum + 1e-20 : 1.0);
    EXPECT_NEAR(r.weights[static_cast<size_t>(row) * topk + k], want,
                2 * error[id] / (sum > 1 ? sum : 1) * 1.5 + 1e-5 * want);
  }
}

TEST(Router, MatchesTheFormula) {
  ThreadPool pool(2);
  uint64_t seed = 0;
  for (const auto& [rows, experts, hidden, topk] :
       {std::tuple{3, 8, 64, 2}, {7, 384, 640, 6}, {2, 5, 33, 5}, {3, 17, 128, 1}}) {
    for (const float gain : {1.0f, 8.0f, 40.0f}) {  // 40: z far below -20 and above 20
      for (const bool normalise : {true, false}) {
        Routing r(rows, experts, hidden, topk, gain, ++seed);
        r.params.normalise = normalise;
        if (seed % 2 == 0) r.params.temperature = 1.7f;
        RouterReference(r.params, pool);
        for (int64_t row = 0; row < rows; ++row) CheckRow(r, row, 1);
        ForEachTarget([&] {
          r.Poison();
          RouterCpu(r.params, pool);
          for (int64_t row = 0; row < rows; ++row) CheckRow(r, row, 80);
        });
      }
    }
  }
}

TEST(Router, EqualExpertsGoToTheLowerId) {
  ThreadPool pool(1);
  Routing r(4, 40, 64, 6, 1.0f, 50);
  std::copy_n(r.gate.begin(), 64, r.gate.begin() + 64 * 7);  // experts 0 and 7 alike
  for (int64_t e = 8; e < 40; ++e) std::copy_n(r.gate.begin() + 64 * 8, 64, r.gate.begin() + 64 * e);
  r.bias[7] = r.bias[0] = r.bias_vl[7] = r.bias_vl[0] = 9;
  for (size_t e = 8; e < 40; ++e) r.bias[e] = r.bias_vl[e] = 5;
  for (auto* route : {RouterReference, RouterCpu}) {
    r.Poison();
    route(r.params, pool);
    for (size_t row = 0; row < 4; ++row) {
      const std::vector<int32_t> got(r.ids.begin() + static_cast<std::ptrdiff_t>(row) * 6,
                                     r.ids.begin() + static_cast<std::ptrdiff_t>(row) * 6 + 6);
      EXPECT_EQ(got, (std::vector<int32_t>{0, 7, 8, 9, 10, 11}));
    }
  }
}

TEST(Router, NanRowsStayTheirOwnAffair) {
  ThreadPool pool(2);
  Routing clean(5, 24, 96, 4, 1.0f, 60), dirty(5, 24, 96, 4, 1.0f, 60);
  std::fill_n(dirty.x.begin() + 2 * 96, 96, kNan);
  RouterCpu(clean.params, pool);
  RouterCpu(dirty.params, pool);
  for (size_t i = 0; i < 20; ++i) {
    if (i / 4 == 2) {
      EXPECT_TRUE(std::isnan(dirty.weights[i]));
      EXPECT_EQ(dirty.ids[i], static_cast<int32_t>(i % 4));
    } else {
      EXPECT_EQ(dirty.ids[i], clean.ids[i]);
      EXPECT_EQ(dirty.weights[i], clean.weights[i]);
    }
  }
}

TEST(Router, ARowDoesNotSeeItsNeighbours) {
  ThreadPool pool(2);
  Routing r(19, 50, 320, 6, 2.0f, 70);
  RouterCpu(r.params, pool);
  const auto ids = r.ids;
  const auto weights = r.weights;
  for (int64_t row = 0; row < 19; ++row) {
    r.Poison();
    RouterParams one = r.params;
    one.rows = 1;
    one.x += row * 320;
    one.is_image += row;
    RouterCpu(one, pool);
    EXPECT_EQ(std::memcmp(r.ids.data(), ids.data() + row * 6, 24), 0);
    EXPECT_EQ(std::memcmp(r.weights.data(), weights.data() + row * 6, 24), 0);
  }
}

TEST(DispatchLists, GroupPairsByExpertInRowOrder) {
  std::mt19937_64 random(80);
  for (const int64_t rows : {0, 1, 5, 300}) {
    const int64_t topk = 3, experts = 9;
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < rows * topk; ++i)
      ids.push_back(static_cast<int32_t>(random() % 8));  // expert 8 stays empty
    std::vector<int32_t> begin(experts + 1, -1), pairs(static_cast<size_t>(rows * topk) + 1, -1);
    MakeDispatchLists(ids.data(), rows, topk, experts, {begin.data(), pairs.data()});
    EXPECT_EQ(begin.front(), 0);
    EXPECT_EQ(begin.back(), rows * topk);
    EXPECT_EQ(pairs.back(), -1);
    std::vector<int32_t> want;
    for (int32_t e = 0; e < experts; ++e) {
      EXPECT_EQ(begin[static_cast<size_t>(e)], static_cast<int32_t>(want.size()));
      for (size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] == e) want.push_back(static_cast<int32_t>(i));
      }
    }
    pairs.pop_back();
    EXPECT_EQ(pairs, want);
  }
}

}  // namespace
}  // namespace senko::ops
