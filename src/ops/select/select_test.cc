// Selection against a brute force written from model.md 3.6, for the reference and for the streaming version.
#include "ops/select/select.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "gtest/gtest.h"
#include "ops/select/order_key.h"
#include "ops/select/running_topk.h"
#include "ops/select/select_fixture.h"

namespace senko::ops {
namespace {

// Repeatedly takes the best remaining index: quadratic, and unlike any code under test.
std::vector<int32_t> TakeBest(const std::vector<double>& scores, const std::vector<bool>& allowed, int64_t count) {
  std::vector<bool> left = allowed;
  for (int64_t taken = 0; taken < count; ++taken) {
    int64_t best = -1;
    for (size_t i = 0; i < scores.size(); ++i) {
      if (left[i] && (best < 0 || scores[i] > scores[static_cast<size_t>(best)])) best = static_cast<int64_t>(i);
    }
    if (best < 0) break;
    left[static_cast<size_t>(best)] = false;
  }
  std::vector<int32_t> kept;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (allowed[i] && !left[i]) kept.push_back(static_cast<int32_t>(i));
  }
  return kept;
}

std::vector<double> Scores(const SelectParams& p, int64_t row) {
  std::vector<float> scores(static_cast<size_t>(p.visible[row]));
  IndexScoreReference(p.score, row, 0, p.visible[row], scores.data());
  std::vector<double> wide(scores.begin(), scores.end());
  for (double& s : wide) s = std::isnan(s) ? -std::numeric_limits<double>::infinity() : s;
  return wide;
}

std::vector<int32_t> BruteSelected(const SelectParams& p, int64_t row) {
  const std::vector<double> scores = Scores(p, row);
  std::vector<bool> allowed(scores.size(), p.candidates == nullptr);
  if (p.candidates != nullptr) {
    for (size_t e = 0; e < scores.size(); ++e) {
      for (int32_t c = 0; c < p.candidate_count[row]; ++c) {
        if (static_cast<int64_t>(e) / p.candidate_block_size == p.candidates[row * p.candidate_stride + c])
          allowed[e] = true;
      }
    }
  }
  return TakeBest(scores, allowed, p.topk);
}

std::vector<int32_t> BruteCandidates(const SelectParams& p, int64_t row) {
  const std::vector<double> scores = Scores(p, row);
  const int64_t n = static_cast<int64_t>(scores.size());
  if (n == 0) return {};
  std::vector<double> maxima(static_cast<size_t>((n + p.candidate_block_size - 1) / p.candidate_block_size),
                             -std::numeric_limits<double>::infinity());
  for (int64_t e = 0; e < n; ++e) {
    double& m = maxima[static_cast<size_t>(e / p.candidate_block_size)];
    m = std::max(m, scores[static_cast<size_t>(e)]);
  }
  maxima[static_cast<size_t>((n - 1) / p.candidate_block_size)] = std::numeric_limits<double>::infinity();
  return TakeBest(maxima, std::vector<bool>(maxima.size(), true), p.candidate_blocks);
}

void Check(SelectFixture& f, void (*select)(const SelectParams&, ThreadPool&), ThreadPool& pool) {
  select(f.params, pool);
  for (int64_t row = 0; row < f.params.score.rows.num_rows; ++row) {
    ASSERT_EQ(f.Selected(row), BruteSelected(f.params, row)) << "row " << row;
    if (f.params.candidates_out != nullptr) {
      ASSERT_EQ(f.Candidates(row), BruteCandidates(f.params, row)) << "row " << row;
    }
  }
}

class Select : public testing::TestWithParam<std::tuple<bool, int>> {
 protected:
  void Run(SelectFixture& f) { Check(f, std::get<0>(GetParam()) ? SelectCpu : SelectReference, pool_); }
  ThreadPool pool_{std::get<1>(GetParam())};
};
INSTANTIATE_TEST_SUITE_P(Backends, Select,
                         testing::Values(std::tuple{false, 1}, std::tuple{true, 1}, std::tuple{true, 2},
                                         std::tuple{true, 5}));

TEST_P(Select, EveryVisibleCountAroundTheThresholds) {
  const int64_t topk = 40;
  const std::vector<int64_t> counts = {0, 1, 2, topk - 1, topk, topk + 1, 63, 64, 65, 127, 128, 129, 300};
  SelectFixture f({.heads = 3,
                   .dim = 32,
                   .entries = 300,
                   .sequences = 2,
                   .rows = static_cast<int64_t>(counts.size()),
                   .entries_per_page = 64},
                  1, topk);
  f.visible = counts;
  f.params.visible = f.visible.data();
  Run(f);
  // Nothing is written past a row's count.
  for (size_t r = 0; r < counts.size(); ++r) {
    for (int64_t i = f.selected_count[r]; i < topk; ++i)
      EXPECT_EQ(f.selected[r * topk + static_cast<size_t>(i)], kUnwritten);
  }
}

TEST_P(Select, TiesGoToTheLowerIndex) {
  for (const int levels : {1, 2, 3, 4}) {
    SelectFixture f({.heads = 2, .dim = 32, .entries = 500, .rows = 3}, 20, 64);
    f.Coarsen(static_cast<uint64_t>(levels), levels);
    f.Publish(30, 8);
    Run(f);
    if (levels == 1) {
      for (int32_t i = 0; i < 64; ++i) EXPECT_EQ(f.selected[static_cast<size_t>(i)], i);
      EXPECT_EQ(f.Candidates(0).back(), 62);
    }
  }
}

TEST_P(Select, LongContextsInOneRowAndInMany) {
  for (const int64_t rows : {1, 3, 12}) {
    SelectFixture f({.heads = 2, .dim = 32, .entries = 12011, .rows = rows, .entries_per_page = 64}, 30, 50);
    for (size_t r = 0; r < f.visible.size(); ++r) f.visible[r] -= static_cast<int64_t>(r) * 531;
    f.Publish(70, 8);
    Run(f);
  }
}

// Enough entries that a row is cut into many pieces, whose survivors merge in several rounds.
TEST_P(Select, ManyPieces) {
  for (const int64_t rows : {1, 2}) {
    SelectFixture f({.heads = 2, .dim = 32, .entries = 24011, .rows = rows, .entries_per_page = 64}, 35, 50);
    for (size_t r = 0; r < f.visible.size(); ++r) f.visible[r] -= static_cast<int64_t>(r) * 9001;
    f.Publish(1500, 8);
    Run(f);
    f.RestrictToPublished();
    for (float& w : f.index.weights) w = -w;
    Run(f);
  }
}

TEST_P(Select, CandidatesArePublishedAndObeyed) {
  struct Case {
    int64_t entries, blocks, block_size, topk;
  };
  const Case cases[] = {{97, 6, 8, 30},    {96, 6, 8, 30},  {89, 6, 8, 10},   {48, 6, 8, 41},    {49, 6, 8, 41},
                        {5000, 40, 8, 64}, {900, 1, 16, 1}, {4097, 5, 3, 13}, {9000, 3, 2500, 5}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.entries);
    SelectFixture f({.heads = 3, .dim = 32, .entries = c.entries, .rows = 4, .entries_per_page = 64}, 40, c.topk);
    for (size_t r = 0; r < 4; ++r) f.visible[r] -= static_cast<int64_t>(r);
    f.Publish(c.blocks, c.block_size);
    Run(f);
    f.RestrictToPublished();
    f.params.topk = std::min<int64_t>(c.topk, 20);
    for (float& w : f.index.weights) w = -w;  // another layer's weights
    Run(f);
  }
}

TEST_P(Select, NanScoresComeLast) {
  SelectFixture f({.heads = 2, .dim = 32, .entries = 5000, .rows = 2, .entries_per_page = 64}, 50, 70);
  std::mt19937_64 random(3);
  for (int i = 0; i < 4950; ++i) {
    *f.params.score.entries.KeyScales(f.index.sequence_kv[0], static_cast<int64_t>(random() % 5000)) = 255;
  }
  f.Publish(100, 8);
  Run(f);
  for (int64_t e = 0; e < 5000; ++e) *f.params.score.entries.KeyScales(f.index.sequence_kv[0], e) = 255;
  Run(f);
}

TEST(OrderKey, OrdersEveryFloatAsFloatsDo) {
  const float inf = std::numeric_limits<float>::infinity();
  const float values[] = {-inf, -3e38f, -1.5f, -1e-40f, 0.0f, 1e-45f, 1e-40f, 1.0f, 3e38f, inf};
  for (size_t i = 0; i + 1 < std::size(values); ++i) EXPECT_LT(OrderKey(values[i]), OrderKey(values[i + 1]));
  EXPECT_EQ(OrderKey(0.0f), OrderKey(-0.0f));
  EXPECT_LT(OrderKey(std::numeric_limits<float>::quiet_NaN()), OrderKey(-inf));
  EXPECT_EQ(OrderKey(-std::numeric_limits<float>::quiet_NaN()), 0u);
  EXPECT_GT(Rank(1.0f, 3), Rank(1.0f, 4));
  EXPECT_EQ(RankIndex(Rank(-2.0f, 123456)), 123456);
}

// Few values, so that most scores equal the k-th best's, in ascending, descending and random order of indices.
TEST(RunningTopK, TiesInAnyOrder) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const float values[] = {0.0f, -0.0f, 0.0f, -1.0f, -2.0f, 1.0f, std::numeric_limits<float>::quiet_NaN()};
  for (const int64_t k : {1, 7, 100, 512}) {
    for (int order = 0; order < 3; ++order) {
      constexpr size_t kCount = 5000;
      std::vector<int32_t> indices(kCount);
      std::iota(indices.begin(), indices.end(), 10);
      if (order == 1) std::reverse(indices.begin(), indices.end());
      if (order == 2) std::shuffle(indices.begin(), indices.end(), random);
      const size_t kinds = order == 2 ? std::size(values) : 5;
      std::vector<float> scores(kCount);
      std::vector<uint64_t> want;
      for (size_t i = 0; i < kCount; ++i) {
        scores[i] = values[random() % kinds];
        want.push_back(Rank(scores[i], indices[i]));
      }
      RunningTopK by_list(k), by_range(k);
      for (size_t at = 0; at < kCount;) {  // cuts that fall anywhere in a probe
        const size_t count = std::min<size_t>(1 + random() % 100, kCount - at);
        by_list.Offer(scores.data() + at, indices.data() + at, static_cast<int64_t>(count));
        if (order == 0) by_range.Offer(scores.data() + at, static_cast<int64_t>(count), indices[at]);
        at += count;
      }
      std::sort(want.begin(), want.end(), std::greater<>());
      want.resize(static_cast<size_t>(k));
      const auto sorted = [](std::span<const uint64_t> best) {
        std::vector<uint64_t> ranks(best.begin(), best.end());
        std::sort(ranks.begin(), ranks.end(), std::greater<>());
        return ranks;
      };
      EXPECT_EQ(sorted(by_list.Best()), want) << "k " << k << ", order " << order;
      if (order == 0) {
        EXPECT_EQ(sorted(by_range.Best()), want) << "k " << k;
      }
    }
  }
}

}  // namespace
}  // namespace senko::ops
