// Routing and dispatch lists of sm_90a: the ranking against the reference on the device's own scores, the lists against
// the host's.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "cuda/test_device.h"
#include "numerics/bf16.h"
#include "ops/router/router.h"
#include "ops/router/router_sm90.h"

namespace senko::ops {
namespace {

using cuda::DeviceBuffer;
using cuda::ToDevice;
using cuda::ToHost;

class RouterSm90Test : public cuda::DeviceTest {};

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

struct Gate {
  int64_t experts, hidden, topk;
  std::vector<uint16_t> codes, x;
  std::vector<float> bias, bias_vl;
  std::vector<uint8_t> is_image;
};

Gate MakeGate(int64_t experts, int64_t hidden, int64_t topk, int64_t rows, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  Gate g{experts, hidden, topk, {}, {}, {}, {}, {}};
  for (int64_t i = 0; i < experts * hidden; ++i) {
    g.codes.push_back(numerics::FloatToBf16(normal(random) / std::sqrt(static_cast<float>(hidden))));
  }
  for (int64_t i = 0; i < rows * hidden; ++i) g.x.push_back(numerics::FloatToBf16(normal(random)));
  for (int64_t i = 0; i < experts; ++i) {
    g.bias.push_back(0.1f * normal(random));
    g.bias_vl.push_back(0.1f * normal(random));
  }
  for (int64_t i = 0; i < rows; ++i) g.is_image.push_back(random() % 4 == 0);
  return g;
}

template <typename Value = __nv_bfloat16>
Routed Route(const Gate& g, int32_t rows, int64_t max_rows, bool normalise = true) {
  std::vector<Value> g_x(g.x.size());
  for (size_t i = 0; i < g_x.size(); ++i) g_x[i] = static_cast<Value>(numerics::Bf16ToFloat(g.x[i]));
  const DeviceBuffer<uint16_t> codes = ToDevice(g.codes);
  const DeviceBuffer<Value> x = ToDevice(g_x);
  const DeviceBuffer<uint8_t> tiles(TileBytes(WeightFormat::kBf16, g.experts, g.hidden));
  const DeviceBuffer<TileFaults> faults = ToDevice(std::vector<TileFaults>(1));
  const TiledWeight gate{WeightFormat::kBf16, g.experts, g.hidden, tiles.data(), nullptr};
  TileWeight(reinterpret_cast<const uint8_t*>(codes.data()), nullptr, gate, tiles.data(), nullptr, faults.data(),
             nullptr);
  const DeviceBuffer<float> bias = ToDevice(g.bias), bias_vl = ToDevice(g.bias_vl),
                            scores(RouterScratchFloats(g.experts, g.hidden, max_rows));
  const DeviceBuffer<uint8_t> is_image = ToDevice(g.is_image);
  const DeviceBuffer<int32_t> count = ToDevice(std::vector<int32_t>{rows});
  const auto size = static_cast<size_t>(max_rows * g.topk);
  const DeviceBuffer<int32_t> ids = ToDevice(std::vector<int32_t>(size, -7));
  const DeviceBuffer<float> weights = ToDevice(std::vector<float>(size, NAN));
  BasicRouterSm90Params<Value> p;
  p.rows = count.data();
  p.max_rows = max_rows;
  p.num_experts = g.experts;
  p.topk = g.topk;
  p.x = x.data();
  p.gate = gate;
  p.bias = bias.data();
  p.bias_vl = bias_vl.data();
  p.is_image = is_image.data();
  p.temperature = 0.8f;
  p.scaling = 1.5f;
  p.normalise = normalise;
  p.scores = scores.data();
  p.ids = ids.data();
  p.weights = weights.data();
  RouterSm90(p, nullptr);
  SENKO_CUDA(cudaDeviceSynchronize());
  return {ToHost(ids), ToHost(weights)};
}

// The reference of these rows, and its scores.
Routed Reference(const Gate& g, int64_t rows, bool normalise, std::vector<float>* scores) {
  ThreadPool pool(4);
  std::vector<float> x(g.x.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = numerics::Bf16ToFloat(g.x[i]);
  Routed want{std::vector<int32_t>(static_cast<size_t>(rows * g.topk)),
              std::vector<float>(static_cast<size_t>(rows * g.topk))};
  scores->resize(static_cast<size_t>(rows * g.experts));
  RouterParams r;
  r.rows = rows;
  r.num_experts = g.experts;
  r.topk = g.topk;
  r.x = x.data();
  r.gate = {WeightFormat::kBf16, g.experts, g.hidden, reinterpret_cast<const uint8_t*>(g.codes.data()), nullptr};
  r.bias = g.bias.data();
  r.bias_vl = g.bias_vl.data();
  r.is_image = g.is_image.data();
  r.temperature = 0.8f;
  r.scaling = 1.5f;
  r.normalise = normalise;
  r.scores = scores->data();
  r.ids = want.ids.data();
  r.weights = want.weights.data();
  RouterReference(r, pool);
  return want;
}

template <typename Value>
void RanksAsTheReference() {
  std::mt19937_64 random(std::random_device{}());
  struct Size {
    int64_t experts, hidden, topk;
  };
  for (const Size size : {Size{16, 128, 2}, Size{384, 5120, 6}, Size{40, 256, 1}, Size{1000, 512, 8}}) {
    constexpr int64_t kRows = 90;
    Gate g = MakeGate(size.experts, size.hidden, size.topk, kRows, random);
    for (int64_t k = 0; k < size.hidden; ++k) {  // two experts that always tie
      g.codes[static_cast<size_t>(5 * size.hidden + k)] = g.codes[static_cast<size_t>(3 * size.hidden + k)];
    }
    g.bias[5] = g.bias[3] = g.bias_vl[5] = g.bias_vl[3] = 3.0f;
    std::vector<float> scores;
    const Routed reference = Reference(g, kRows, true, &scores);
    const std::vector<int32_t>& ids = reference.ids;
    const std::vector<float>& weights = reference.weights;
    const Routed all = Route<Value>(g, kRows, kRows);
    int64_t ties = 0;
    for (int64_t row = 0; row < kRows; ++row) {
      const float* bias = g.is_image[static_cast<size_t>(row)] != 0 ? g.bias_vl.data() : g.bias.data();
      const auto value = [&](int32_t id) {
        return double{scores[static_cast<size_t>(row * size.experts + id)]} + bias[id];
      };
      for (int64_t k = 0; k < size.topk; ++k) {
        const auto at = static_cast<size_t>(row * size.topk + k);
        const int32_t id = all.ids[at];
        ASSERT_TRUE(id >= 0 && id < size.experts);
        // float32 sums of `hidden` products against double: 1e-5 of scores about one.
        ASSERT_NEAR(value(id), value(ids[at]), 2e-5) << row << " " << k;
        ties += id != ids[at];
        if (id == ids[at]) {
          EXPECT_NEAR(all.weights[at], weights[at], 3e-5 * std::abs(weights[at]) + 1e-6);
        }
      }
      EXPECT_EQ(all.ids[static_cast<size_t>(row * size.topk)], 3);  // of equals, the lower
      if (size.topk > 1) {
        EXPECT_EQ(all.ids[static_cast<size_t>(row * size.topk + 1)], 5);
      }
    }
    EXPECT_LE(ties, kRows * size.topk / 50);
    for (const int32_t rows : {1, 8, 17, 64, 65}) {
      const Routed some = Route<Value>(g, rows, rows + 3);
      const auto count = static_cast<size_t>(rows * size.topk);
      EXPECT_EQ(std::memcmp(some.ids.data(), all.ids.data(), count * 4), 0) << rows;
      EXPECT_EQ(std::memcmp(some.weights.data(), all.weights.data(), count * 4), 0) << rows;
      for (size_t i = count; i < some.ids.size(); ++i) ASSERT_TRUE(some.ids[i] == -7 && std::isnan(some.weights[i]));
    }
  }
}

TEST_F(RouterSm90Test, RanksAsTheReferenceButForNearTies) { RanksAsTheReference<__nv_bfloat16>(); }
TEST_F(RouterSm90Test, FloatRowsRankAsTheReferences) { RanksAsTheReference<float>(); }

TEST_F(RouterSm90Test, WeightsThatAreNotNormalisedAreTheScores) {
  std::mt19937_64 random(std::random_device{}());
  constexpr int64_t kRows = 40;
  for (const int64_t topk : {1, 6}) {
    const Gate g = MakeGate(48, 256, topk, kRows, random);
    std::vector<float> scores;
    Reference(g, kRows, false, &scores);
    const Routed got = Route(g, kRows, kRows, false);
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t k = 0; k < topk; ++k) {
        const auto at = static_cast<size_t>(row * topk + k);
        const float score = scores[static_cast<size_t>(row * g.experts + got.ids[at])];
        EXPECT_NEAR(got.weights[at], 1.5f * score, 3e-5f * score + 1e-6f);
      }
    }
    if (topk == 1) {  // nothing to normalise by
      const Routed other = Route(g, kRows, kRows, true);
      EXPECT_EQ(std::memcmp(got.weights.data(), other.weights.data(), got.weights.size() * 4), 0);
    }
  }
}

// A score or a bias that is NaN comes last, the lower id first; taken all the same, it shows in the weights.
TEST_F(RouterSm90Test, NanIsLastAndShows) {
  std::mt19937_64 random(std::random_device{}());
  constexpr int64_t kRows = 30, kExperts = 8, kHidden = 128;
  for (const int64_t topk : {6, 8}) {
    Gate g = MakeGate(kExperts, kHidden, topk, kRows, random);
    g.codes[5 * kHidden + 17] = 0x7FC1;                                                         // expert 5's scores
    g.bias[2] = g.bias_vl[2] = NAN;                                                             // expert 2's rank
    for (int64_t k = 0; k < kHidden; ++k) g.x[static_cast<size_t>(11 * kHidden + k)] = 0xFFC0;  // a row
    std::vector<float> scores;
    Reference(g, kRows, true, &scores);
    for (const bool normalise : {true, false}) {
      const Routed got = Route(g, kRows, kRows, normalise);
      for (int64_t row = 0; row < kRows; ++row) {
        const int32_t* ids = got.ids.data() + row * topk;
        const float* weights = got.weights.data() + row * topk;
        std::vector<int32_t> sorted(ids, ids + topk);
        std::sort(sorted.begin(), sorted.end());
        if (row == 11) {  // of equals, the lower
          for (int32_t k = 0; k < topk; ++k) {
            EXPECT_EQ(ids[k], k);
            EXPECT_TRUE(std::isnan(weights[k]));
          }
          continue;
        }
        const float* bias = g.is_image[static_cast<size_t>(row)] != 0 ? g.bias_vl.data() : g.bias.data();
        const auto rank = [&](int32_t id) { return scores[static_cast<size_t>(row * kExperts + id)] + bias[id]; };
        for (int k = 1; k < 6; ++k) EXPECT_GE(rank(ids[k - 1]), rank(ids[k]) - 2e-5f);  // also that none is NaN
        if (topk == 6) {
          EXPECT_EQ(sorted, (std::vector<int32_t>{0, 1, 3, 4, 6, 7}));
        } else {
          EXPECT_EQ(ids[6], 2);
          EXPECT_EQ(ids[7], 5);
        }
        for (int k = 0; k < topk; ++k) {
          EXPECT_EQ(std::isnan(weights[k]), topk == 8 && (normalise || ids[k] == 5)) << row << ' ' << k;
        }
      }
    }
  }
}

TEST_F(RouterSm90Test, ListsAreTheHosts) {
  std::mt19937_64 random(std::random_device{}());
  for (const int64_t experts : {1, 16, 384}) {
    for (const int64_t rows : {0, 1, 7, 64, 700, 3000}) {
      for (const bool same : {false, true}) {  // every row picks the same experts
        const int64_t topk = std::min<int64_t>(6, experts), max_rows = rows + 5;
        std::vector<int32_t> ids;
        for (int64_t r = 0; r < rows; ++r) {
          std::vector<int32_t> row(static_cast<size_t>(experts));
          for (int64_t e = 0; e < experts; ++e) row[static_cast<size_t>(e)] = static_cast<int32_t>(e);
          if (!same) std::shuffle(row.begin(), row.end(), random);
          ids.insert(ids.end(), row.begin(), row.begin() + topk);
        }
        std::vector<int32_t> begin(static_cast<size_t>(experts + 1)), pairs(ids.size());
        MakeDispatchLists(ids.data(), rows, topk, experts, {begin.data(), pairs.data()});
        for (const int64_t block : {8, 128}) {
          std::vector<int32_t> padded = ids;
          padded.resize(static_cast<size_t>(max_rows * topk), 3);
          const DeviceBuffer<int32_t> d_ids = ToDevice(padded),
                                      count = ToDevice(std::vector<int32_t>{static_cast<int32_t>(rows)});
          const DeviceBuffer<int32_t> counts(static_cast<size_t>(experts)), d_pairs(padded.size()), num_items(1);
          const DeviceBuffer<ExpertItem> items(static_cast<size_t>(MaxExpertItems(max_rows, topk, experts, block)));
          DispatchSm90({count.data(), experts, topk, block, d_ids.data(), counts.data(), d_pairs.data(), items.data(),
                        num_items.data()},
                       nullptr);
          SENKO_CUDA(cudaDeviceSynchronize());
          const std::vector<int32_t> got = ToHost(d_pairs);
          EXPECT_TRUE(std::equal(pairs.begin(), pairs.end(), got.begin())) << experts << " " << rows;
          const std::vector<ExpertItem> got_items = ToHost(items);
          const auto items_there = static_cast<size_t>(ToHost(num_items)[0]);
          ASSERT_LE(items_there, got_items.size());
          size_t at = 0;
          for (int32_t e = 0; e < experts; ++e) {
            for (int32_t first = begin[static_cast<size_t>(e)]; first < begin[static_cast<size_t>(e) + 1];
                 first += static_cast<int32_t>(block)) {
              ASSERT_LT(at, items_there);
              EXPECT_EQ(got_items[at].expert, e);
              EXPECT_EQ(got_items[at].first, first);
              EXPECT_EQ(got_items[at].count,
                        std::min<int32_t>(static_cast<int32_t>(block), begin[static_cast<size_t>(e) + 1] - first));
              ++at;
            }
          }
          EXPECT_EQ(at, items_there);
        }
      }
    }
  }
}

// All that routing gives, of rows that are fewer than those launched for.
struct Lists {
  std::vector<int32_t> ids, pairs, items, num_items, counts;
  std::vector<float> weights;
};

// Everything is poisoned before.
class Routing {
 public:
  Routing(const Gate& g, int64_t max_rows, int64_t block)
      : codes_(ToDevice(g.codes)),
        x_(ToDevice(g.x)),
        tiles_(TileBytes(WeightFormat::kBf16, g.experts, g.hidden)),
        faults_(ToDevice(std::vector<TileFaults>(1))),
        bias_(ToDevice(g.bias)),
        bias_vl_(ToDevice(g.bias_vl)),
        scores_(RouterScratchFloats(g.experts, g.hidden, max_rows)),
        weights_(static_cast<size_t>(max_rows * g.topk)),
        is_image_(ToDevice(g.is_image)),
        count_(1),
        ids_(static_cast<size_t>(max_rows * g.topk)),
        counts_(static_cast<size_t>(g.experts)),
        pairs_(ids_.size()),
        num_items_(1),
        items_(static_cast<size_t>(MaxExpertItems(max_rows, g.topk, g.experts, block)) * 3) {
    r.rows = count_.data();
    r.max_rows = max_rows;
    r.num_experts = g.experts;
    r.topk = g.topk;
    r.x = reinterpret_cast<const __nv_bfloat16*>(x_.data());
    r.gate = {WeightFormat::kBf16, g.experts, g.hidden, tiles_.data(), nullptr};
    r.bias = bias_.data();
    r.bias_vl = bias_vl_.data();
    r.is_image = is_image_.data();
    r.temperature = 0.8f;
    r.scaling = 1.5f;
    r.scores = scores_.data();
    r.ids = ids_.data();
    r.weights = weights_.data();
    d = {count_.data(),    g.experts,      g.topk,        block,
         ids_.data(),      counts_.data(), pairs_.data(), reinterpret_cast<ExpertItem*>(items_.data()),
         num_items_.data()};
    TileWeight(reinterpret_cast<const uint8_t*>(codes_.data()), nullptr, r.gate, tiles_.data(), nullptr, faults_.data(),
               nullptr);
    SENKO_CUDA(cudaDeviceSynchronize());
  }

  template <typename Launch>
  Lists Run(int32_t rows, const Launch& launch) {
    cuda::Overwrite(count_, {rows});
    for (const DeviceBuffer<int32_t>* b : {&ids_, &counts_, &pairs_, &num_items_, &items_}) {
      cuda::Overwrite(*b, std::vector<int32_t>(b->size(), -7));
    }
    for (const DeviceBuffer<float>* b : {&scores_, &weights_}) {
      cuda::Overwrite(*b, std::vector<float>(b->size(), NAN));
    }
    launch();
    SENKO_CUDA(cudaDeviceSynchronize());
    return {ToHost(ids_), ToHost(pairs_), ToHost(items_), ToHost(num_items_), ToHost(counts_), ToHost(weights_)};
  }

  RouterSm90Params r;
  DispatchSm90Params d;

 private:
  DeviceBuffer<uint16_t> codes_, x_;
  DeviceBuffer<uint8_t> tiles_;
  DeviceBuffer<TileFaults> faults_;
  DeviceBuffer<float> bias_, bias_vl_, scores_, weights_;
  DeviceBuffer<uint8_t> is_image_;
  DeviceBuffer<int32_t> count_, ids_, counts_, pairs_, num_items_, items_;
};

void ExpectSame(const Lists& a, const Lists& b, int64_t rows, int64_t max_rows) {
  EXPECT_EQ(a.ids, b.ids) << rows << " of " << max_rows;
  EXPECT_EQ(a.pairs, b.pairs) << rows << " of " << max_rows;
  EXPECT_EQ(a.items, b.items) << rows << " of " << max_rows;
  EXPECT_EQ(a.num_items, b.num_items) << rows << " of " << max_rows;
  EXPECT_EQ(a.counts, b.counts) << rows << " of " << max_rows;
  EXPECT_EQ(std::memcmp(a.weights.data(), b.weights.data(), a.weights.size() * 4), 0) << rows << " of " << max_rows;
}

// Two launches or four: the same bits everywhere, and what is not there stays as it was.
TEST_F(RouterSm90Test, FewRowsInTwoLaunchesAreTheSame) {
  std::mt19937_64 random(std::random_device{}());
  struct Size {
    int64_t experts, hidden, topk;
  };
  for (const Size size :
       {Size{384, 5120, 6}, Size{16, 128, 2}, Size{1000, 1088, 8}, Size{1, 64, 1}, Size{7, 9216, 7}}) {
    Gate g = MakeGate(size.experts, size.hidden, size.topk, kFewRoutedRows, random);
    g.x[static_cast<size_t>(2 * size.hidden + 5)] = 0x7FC1;  // a NaN row: all equal
    if (size.experts > 5) {
      g.bias[4] = NAN;
      for (int64_t k = 0; k < size.hidden; ++k) {  // a tie
        g.codes[static_cast<size_t>(5 * size.hidden + k)] = g.codes[static_cast<size_t>(3 * size.hidden + k)];
      }
      g.bias[5] = g.bias[3] = g.bias_vl[5] = g.bias_vl[3] = 3.0f;  // many rows of one expert
    }
    for (const int64_t max_rows : {1, 2, 7, 8, 9, 33, 64}) {
      Routing routing(g, max_rows, max_rows > 8 ? 16 : 8);
      for (const int64_t rows : {max_rows, max_rows / 2, int64_t{0}}) {
        const Lists want = routing.Run(static_cast<int32_t>(rows), [&] {
          RouterSm90(routing.r, nullptr);
          DispatchSm90(routing.d, nullptr);
        });
        for (int repeat = 0; repeat < 2; ++repeat) {
          ExpectSame(routing.Run(static_cast<int32_t>(rows), [&] { RouteSm90(routing.r, routing.d, nullptr); }), want,
                     rows, max_rows);
        }
      }
    }
  }
}

TEST_F(RouterSm90Test, AGraphOfTwoLaunchesServesOtherCounts) {
  std::mt19937_64 random(std::random_device{}());
  const Gate g = MakeGate(384, 5120, 6, kFewRoutedRows, random);
  Routing routing(g, kFewRoutedRows, 8);
  cuda::CapturedGraph graph([&](cudaStream_t stream) { RouteSm90(routing.r, routing.d, stream); });
  for (const int32_t rows : {64, 1, 0, 33}) {
    const Lists want = routing.Run(rows, [&] {
      RouterSm90(routing.r, nullptr);
      DispatchSm90(routing.d, nullptr);
    });
    ExpectSame(routing.Run(rows, [&] { graph.Run(); }), want, rows, kFewRoutedRows);
  }
}

}  // namespace
}  // namespace senko::ops
