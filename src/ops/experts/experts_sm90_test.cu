// Grouped experts of sm_90a against the reference on the same rows, codes and routing, and against themselves for every
// size of an item: the same bits.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "cuda/test_device.h"
#include "numerics/bf16.h"
#include "ops/experts/experts.h"
#include "ops/experts/experts_sm90.h"

namespace senko::ops {
namespace {

using cuda::DeviceBuffer;
using cuda::ToDevice;
using cuda::ToHost;

constexpr uint16_t kPoison = 0x7FA5;  // a NaN

class ExpertsSm90Test : public cuda::DeviceTest {};

struct Matrix {
  std::vector<uint8_t> data, scale;
};
Matrix RandomMatrix(WeightFormat format, int64_t out, int64_t in, std::mt19937_64& random) {
  Matrix m;
  m.data.resize(static_cast<size_t>(format == WeightFormat::kFp4 ? out * in / 2 : out * in));
  for (uint8_t& b : m.data) {
    b = static_cast<uint8_t>(random());
    if (format == WeightFormat::kFp8 && (b & 0x7F) >= 0x60) b &= 0x9F;  // of moderate size
  }
  m.scale.resize(static_cast<size_t>((format == WeightFormat::kFp4 ? out : (out + 31) / 32) * (in / 32)));
  for (uint8_t& s : m.scale) s = static_cast<uint8_t>(127 - 7 + random() % 3);
  return m;
}

// Rows and columns of zeros behind those that are there, their scales 1.
Matrix Padded(const Matrix& m, WeightFormat format, int64_t out, int64_t in, int64_t to_out, int64_t to_in) {
  const bool fp4 = format == WeightFormat::kFp4;
  const auto pad = [](const std::vector<uint8_t>& from, int64_t rows, int64_t width, int64_t to_rows, int64_t to_width,
                      uint8_t fill) {
    std::vector<uint8_t> to(static_cast<size_t>(to_rows * to_width), fill);
    for (int64_t r = 0; r < rows; ++r) std::copy_n(from.begin() + r * width, width, to.begin() + r * to_width);
    return to;
  };
  const int64_t bytes = fp4 ? in / 2 : in, to_bytes = fp4 ? to_in / 2 : to_in;
  const int64_t scale_rows = fp4 ? out : (out + 31) / 32, to_scale_rows = fp4 ? to_out : to_out / 32;
  return {pad(m.data, out, bytes, to_out, to_bytes, 0),
          pad(m.scale, scale_rows, in / 32, to_scale_rows, to_in / 32, 127)};
}

struct Layer {
  WeightFormat format;
  int64_t hidden, inter, experts;
  std::vector<Matrix> w1, w3, w2;

  int64_t padded() const { return (inter + 63) / 64 * 64; }  // inter as tiled
};
struct OnDevice {
  DeviceBuffer<uint8_t> up, up_scales, down, down_scales;
  ExpertTiles tiles;
};

// w1 and w3 in turn, 64 rows each.
OnDevice Upload(const Layer& l) {
  OnDevice d;
  const int64_t inter = l.padded();
  const size_t up_bytes = TileBytes(l.format, 2 * inter, l.hidden),
               up_scales = TileScaleBytes(l.format, 2 * inter, l.hidden);
  const size_t down_bytes = TileBytes(l.format, l.hidden, inter),
               down_scales = TileScaleBytes(l.format, l.hidden, inter);
  const auto n = static_cast<size_t>(l.experts);
  d.up = DeviceBuffer<uint8_t>(n * up_bytes);
  d.up_scales = DeviceBuffer<uint8_t>(n * up_scales);
  d.down = DeviceBuffer<uint8_t>(n * down_bytes);
  d.down_scales = DeviceBuffer<uint8_t>(n * down_scales);
  const DeviceBuffer<TileFaults> faults = ToDevice(std::vector<TileFaults>(1));
  const int64_t row_bytes = l.format == WeightFormat::kFp4 ? l.hidden / 2 : l.hidden;
  const int64_t scale_rows = l.format == WeightFormat::kFp4 ? 64 : 2;
  for (size_t e = 0; e < n; ++e) {
    const Matrix w1 = Padded(l.w1[e], l.format, l.inter, l.hidden, inter, l.hidden),
                 w3 = Padded(l.w3[e], l.format, l.inter, l.hidden, inter, l.hidden),
                 w2 = Padded(l.w2[e], l.format, l.hidden, l.inter, l.hidden, inter);
    Matrix up;
    for (int64_t t = 0; t < inter / 64; ++t) {
      for (const Matrix* m : {&w1, &w3}) {
        up.data.insert(up.data.end(), m->data.begin() + t * 64 * row_bytes, m->data.begin() + (t + 1) * 64 * row_bytes);
        const int64_t scales = scale_rows * (l.hidden / 32);
        up.scale.insert(up.scale.end(), m->scale.begin() + t * scales, m->scale.begin() + (t + 1) * scales);
      }
    }
    const DeviceBuffer<uint8_t> data = ToDevice(up.data), scale = ToDevice(up.scale), data2 = ToDevice(w2.data),
                                scale2 = ToDevice(w2.scale);
    TiledWeight w{l.format, 2 * inter, l.hidden, nullptr, nullptr};
    TileWeight(data.data(), scale.data(), w, d.up.data() + e * up_bytes, d.up_scales.data() + e * up_scales,
               faults.data(), nullptr);
    w.out = l.hidden;
    w.in = inter;
    TileWeight(data2.data(), scale2.data(), w, d.down.data() + e * down_bytes, d.down_scales.data() + e * down_scales,
               faults.data(), nullptr);
    SENKO_CUDA(cudaDeviceSynchronize());
  }
  const TileFaults f = ToHost(faults)[0];
  EXPECT_EQ(f.nan_codes + f.large_scales + f.small_codes, 0u);
  d.tiles = {l.format, inter, l.hidden, d.up.data(), d.up_scales.data(), d.down.data(), d.down_scales.data()};
  return d;
}

struct Routing {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

// What differs between routed and shared experts.
struct Setting {
  bool weighted = true;
  float limit = 10;
  bool round = true;
};

// A step's memory; h, y and the sums are NaN before. y: [max_rows, topk + 1, hidden] in bf16, whose last slot nobody
// writes but the shared expert.
struct Step {
  DeviceBuffer<uint16_t> x, h, y, shared_h;
  DeviceBuffer<uint8_t> scratch;
  DeviceBuffer<int32_t> ids, rows, counts, pairs, num_items;
  DeviceBuffer<float> weights;
  DeviceBuffer<ExpertItem> items;
  DispatchSm90Params dispatch;
  ExpertsSm90Params p;

  Step(const OnDevice& d, const Layer& l, const std::vector<uint16_t>& codes, const Routing& r, int64_t max_rows,
       int64_t topk, int64_t block, const Setting& setting, const OnDevice* shared = nullptr) {
    x = ToDevice(codes);
    ids = ToDevice(r.ids);
    rows = ToDevice(std::vector<int32_t>{static_cast<int32_t>(max_rows)});
    weights = ToDevice(r.weights);
    const int64_t max_items = MaxExpertItems(max_rows, topk, l.experts, block);
    counts = DeviceBuffer<int32_t>(static_cast<size_t>(l.experts));
    pairs = DeviceBuffer<int32_t>(r.ids.size());
    num_items = DeviceBuffer<int32_t>(1);
    items = DeviceBuffer<ExpertItem>(static_cast<size_t>(max_items));
    h = ToDevice(std::vector<uint16_t>(static_cast<size_t>(max_rows * topk * l.padded()), kPoison));
    y = ToDevice(std::vector<uint16_t>(static_cast<size_t>(max_rows * (topk + 1) * l.hidden), kPoison));
    dispatch = {rows.data(),   l.experts,    topk,         block,           ids.data(),
                counts.data(), pairs.data(), items.data(), num_items.data()};
    p.num_items = num_items.data();
    p.max_items = max_items;
    p.items = items.data();
    p.pairs = pairs.data();
    p.block = block;
    p.topk = topk;
    p.weights = d.tiles;
    p.x = reinterpret_cast<const __nv_bfloat16*>(x.data());
    p.route_weights = setting.weighted ? weights.data() : nullptr;
    p.swiglu_limit = setting.limit;
    p.round_activations = setting.round;
    p.h = reinterpret_cast<__nv_bfloat16*>(h.data());
    p.y = reinterpret_cast<__nv_bfloat16*>(y.data());
    p.y_row_slots = topk + 1;
    std::vector<uint8_t> dirty(ExpertsScratchBytes(l.hidden, l.padded(), shared ? shared->tiles.inter : 0), 0xFF);
    std::fill_n(dirty.begin(), kExpertTicketBytes, uint8_t{0});
    scratch = ToDevice(dirty);
    p.scratch = scratch.data();
    if (shared == nullptr) return;
    p.shared = shared->tiles;
    p.rows = rows.data();
    p.max_rows = max_rows;
    shared_h = ToDevice(std::vector<uint16_t>(static_cast<size_t>(max_rows * p.shared.inter), kPoison));
    p.shared_h = reinterpret_cast<__nv_bfloat16*>(shared_h.data());
  }
  void Launch(cudaStream_t stream) const {
    DispatchSm90(dispatch, stream);
    ExpertsSm90(p, stream);
  }
  std::vector<float> Result() const {
    const std::vector<uint16_t> codes = ToHost(y);
    std::vector<float> out(codes.size());
    for (size_t i = 0; i < codes.size(); ++i) out[i] = numerics::Bf16ToFloat(codes[i]);
    return out;
  }
};

std::vector<float> RunExperts(const OnDevice& d, const Layer& l, const std::vector<uint16_t>& x, const Routing& r,
                              int64_t rows, int64_t topk, int64_t block, const Setting& setting = {}) {
  const Step step(d, l, x, r, rows, topk, block, setting);
  step.Launch(nullptr);
  SENKO_CUDA(cudaDeviceSynchronize());
  return step.Result();
}

struct Size {
  WeightFormat format;
  int64_t hidden, inter, experts, topk, rows;
};

struct Problem {
  Size size;
  Layer layer;
  std::vector<float> x;  // rounded as activations
  std::vector<uint16_t> codes;
  Routing routing;
};

Problem MakeProblem(const Size& s, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  ThreadPool pool(4);
  Problem p{s, {s.format, s.hidden, s.inter, s.experts, {}, {}, {}}, {}, {}, {}};
  for (int64_t e = 0; e < s.experts; ++e) {
    p.layer.w1.push_back(RandomMatrix(s.format, s.inter, s.hidden, random));
    p.layer.w3.push_back(RandomMatrix(s.format, s.inter, s.hidden, random));
    p.layer.w2.push_back(RandomMatrix(s.format, s.hidden, s.inter, random));
  }
  p.x.resize(static_cast<size_t>(s.rows * s.hidden));
  for (float& v : p.x) v = numerics::RoundToBf16(normal(random));
  RoundActivationsReference(p.x.data(), p.x.data(), s.rows, s.hidden, pool);
  for (const float v : p.x) p.codes.push_back(numerics::FloatToBf16(v));
  for (int64_t row = 0; row < s.rows; ++row) {  // the first expert has every row
    for (int64_t k = 0; k < s.topk; ++k) {
      p.routing.ids.push_back(static_cast<int32_t>(k == 0 ? 0 : 1 + (row + k) % (s.experts - 1)));
      p.routing.weights.push_back(std::abs(normal(random)));
    }
  }
  return p;
}

// One expert's output for one row is the reference's sum when it is the only slot.
void CompareWithReference(const Problem& problem, const std::vector<float>& got, const Setting& setting) {
  const Size& s = problem.size;
  const Layer& l = problem.layer;
  ThreadPool pool(16);
  double worst = 0, scale = 0;
  for (int64_t row = 0; row < s.rows; row += 7) {
    for (int64_t k = 0; k < s.topk; ++k) {
      const auto pair = static_cast<size_t>(row * s.topk + k);
      const auto e = static_cast<size_t>(problem.routing.ids[pair]);
      const auto view = [&](const Matrix& m, int64_t out, int64_t in) {
        return WeightView{s.format, out, in, m.data.data(), m.scale.data()};
      };
      const ExpertWeights weights{view(l.w1[e], s.inter, s.hidden), view(l.w3[e], s.inter, s.hidden),
                                  view(l.w2[e], s.hidden, s.inter)};
      const float weight = setting.weighted ? problem.routing.weights[pair] : 1.0f;
      std::vector<int32_t> begin = {0, 1}, pairs = {0};
      std::vector<float> y(static_cast<size_t>(s.hidden));
      ExpertsParams p;
      p.rows = 1;
      p.hidden = s.hidden;
      p.inter = s.inter;
      p.num_experts = 1;
      p.topk = 1;
      p.x = problem.x.data() + row * s.hidden;
      p.experts = &weights;
      p.route_weights = &weight;
      p.dispatch = {begin.data(), pairs.data()};
      p.swiglu_limit = setting.limit;
      p.round_bf16 = true;
      p.round_activations = setting.round;
      p.y = y.data();
      ExpertsReference(p, pool);
      for (int64_t c = 0; c < s.hidden; ++c) {
        const double value = got[static_cast<size_t>((row * (s.topk + 1) + k) * s.hidden + c)];
        const double error = std::abs(value - double{y[static_cast<size_t>(c)]});
        worst = error <= worst ? worst : error;
        scale = std::max(scale, std::abs(double{y[static_cast<size_t>(c)]}));
      }
    }
    for (int64_t c = 0; c < s.hidden; ++c) {
      ASSERT_TRUE(std::isnan(got[static_cast<size_t>((row * (s.topk + 1) + s.topk) * s.hidden + c)]));
    }
  }
  // Of a thousand values some are rounded to the other neighbour in front of down (a step of 2^-3 for e4m3, of 2^-8 for
  // bf16), and so is the result: 1% of the largest.
  EXPECT_LE(worst, 0.01 * scale) << s.hidden;
  EXPECT_GT(scale, 0.0);
  std::printf("hidden %d: largest difference %.2g of %.2g\n", static_cast<int>(s.hidden), worst, scale);
}

TEST_F(ExpertsSm90Test, AgreesWithTheReferenceAndWithItselfForEveryItem) {
  std::mt19937_64 random(std::random_device{}());
  for (const Size s : {Size{WeightFormat::kFp4, 128, 64, 4, 2, 40}, Size{WeightFormat::kFp8, 256, 128, 3, 1, 70},
                       Size{WeightFormat::kFp4, 2048, 320, 5, 3, 150}, Size{WeightFormat::kFp8, 1088, 192, 2, 2, 140},
                       Size{WeightFormat::kFp4, 320, 288, 3, 2, 70}, Size{WeightFormat::kFp8, 320, 96, 3, 2, 40}}) {
    const Problem p = MakeProblem(s, random);
    const OnDevice d = Upload(p.layer);
    const std::vector<float> all = RunExperts(d, p.layer, p.codes, p.routing, s.rows, s.topk, 128);
    for (const int64_t block : {8, 16, 32, 64}) {
      const std::vector<float> other = RunExperts(d, p.layer, p.codes, p.routing, s.rows, s.topk, block);
      int64_t wrong = 0;
      for (size_t i = 0; i < all.size(); ++i) wrong += std::memcmp(&all[i], &other[i], 4) != 0;
      EXPECT_EQ(wrong, 0) << "items of " << block << ", " << s.hidden;
    }
    CompareWithReference(p, all, {});
  }
}

// The shared expert's settings, and each alone: no routing weight, no clamp, no rounding in front of down.
TEST_F(ExpertsSm90Test, EverySettingIsTheReferences) {
  std::mt19937_64 random(std::random_device{}());
  for (const Size s : {Size{WeightFormat::kFp8, 512, 192, 1, 1, 50}, Size{WeightFormat::kFp4, 256, 128, 3, 2, 40}}) {
    Problem p = MakeProblem(s, random);
    for (float& v : p.x) v *= 4;  // exact; gates and ups beyond the limit
    p.codes.clear();
    for (const float v : p.x) p.codes.push_back(numerics::FloatToBf16(v));
    const OnDevice d = Upload(p.layer);
    std::vector<std::vector<float>> results;
    for (const Setting& setting : {Setting{true, 10, true}, Setting{false, 10, true}, Setting{true, 0, true},
                                   Setting{true, 10, false}, Setting{false, 0, false}}) {
      for (const int64_t block : {8, 16, 128}) {
        const std::vector<float> got = RunExperts(d, p.layer, p.codes, p.routing, s.rows, s.topk, block, setting);
        if (block == 8) {
          CompareWithReference(p, got, setting);
          results.push_back(got);
        } else {
          EXPECT_EQ(std::memcmp(got.data(), results.back().data(), got.size() * 4), 0) << block;
        }
      }
    }
    for (size_t i = 0; i < results.size(); ++i) {  // each setting counts
      for (size_t j = 0; j < i; ++j)
        EXPECT_NE(std::memcmp(results[i].data(), results[j].data(), results[i].size() * 4), 0);
    }
  }
}

// A NaN in a row, or in a pair's weight, is seen in all of its outputs and in no other's.
TEST_F(ExpertsSm90Test, ANanReachesItsPairs) {
  std::mt19937_64 random(std::random_device{}());
  const Size s{WeightFormat::kFp4, 256, 128, 4, 2, 45};
  Problem p = MakeProblem(s, random);
  const OnDevice d = Upload(p.layer);
  const std::vector<float> clean = RunExperts(d, p.layer, p.codes, p.routing, s.rows, s.topk, 8);
  p.codes[static_cast<size_t>(9 * s.hidden + 100)] = 0x7FC1;
  p.routing.weights[static_cast<size_t>(30 * s.topk + 1)] = NAN;
  for (const int64_t block : {8, 16, 32, 64, 128}) {
    const std::vector<float> got = RunExperts(d, p.layer, p.codes, p.routing, s.rows, s.topk, block);
    for (size_t i = 0; i < got.size(); ++i) {
      const auto slot = static_cast<int64_t>(i) / s.hidden, row = slot / (s.topk + 1), k = slot % (s.topk + 1);
      const bool nan = row == 9 || (row == 30 && k == 1) || k == s.topk;
      ASSERT_TRUE(nan ? std::isnan(got[i]) : std::memcmp(&got[i], &clean[i], 4) == 0)
          << block << ' ' << row << ' ' << k;
    }
  }
}

// The first rows of a problem.
Routing FirstRows(const Routing& r, int64_t rows, int64_t topk) {
  const auto pairs = static_cast<std::ptrdiff_t>(rows * topk);
  return {{r.ids.begin(), r.ids.begin() + pairs}, {r.weights.begin(), r.weights.begin() + pairs}};
}

// The shared expert beside the routed ones, in one launch or in its own: the bits of both alone, for any number of
// rows, run for run, and no ticket is left.
TEST_F(ExpertsSm90Test, TheSharedExpertBesideThem) {
  std::mt19937_64 random(std::random_device{}());
  struct Case {
    Size routed;
    int64_t shared_inter;
  };
  for (const Case& c :
       {Case{{WeightFormat::kFp4, 1088, 192, 5, 3, 150}, 320}, Case{{WeightFormat::kFp8, 320, 128, 3, 2, 70}, 64},
        Case{{WeightFormat::kFp4, 5120, 2304, 3, 2, 64}, 2304}}) {
    const Size& s = c.routed;
    const Problem p = MakeProblem(s, random),
                  q = MakeProblem({WeightFormat::kFp8, s.hidden, c.shared_inter, 1, 1, 1}, random);
    const OnDevice d = Upload(p.layer), d_shared = Upload(q.layer);
    const std::vector<float> routed = RunExperts(d, p.layer, p.codes, p.routing, s.rows, s.topk, 128);
    const Routing everyone{std::vector<int32_t>(static_cast<size_t>(s.rows)),
                           std::vector<float>(static_cast<size_t>(s.rows), 1.0f)};
    const std::vector<float> alone =
        RunExperts(d_shared, q.layer, p.codes, everyone, s.rows, 1, 128, {false, 10, true});
    for (const int64_t rows : {int64_t{1}, int64_t{3}, int64_t{8}, int64_t{9}, int64_t{37}, int64_t{64}, s.rows}) {
      for (const int64_t block : {8, 16, 32, 64}) {
        const std::vector<uint16_t> codes(p.codes.begin(), p.codes.begin() + rows * s.hidden);
        const Step step(d, p.layer, codes, FirstRows(p.routing, rows, s.topk), rows, s.topk, block, {}, &d_shared);
        for (int run = 0; run < 3; ++run) {
          cuda::Overwrite(step.y, std::vector<uint16_t>(step.y.size(), kPoison));
          step.Launch(nullptr);
          SENKO_CUDA(cudaDeviceSynchronize());
          const std::vector<float> got = step.Result();
          int64_t wrong = 0, wrong_shared = 0;
          for (size_t i = 0; i < got.size(); ++i) {
            const auto slot = static_cast<int64_t>(i) / s.hidden, row = slot / (s.topk + 1), k = slot % (s.topk + 1);
            const auto column = i % static_cast<size_t>(s.hidden);
            if (k < s.topk) {
              wrong += std::memcmp(&got[i], &routed[i], 4) != 0;
            } else {
              wrong_shared += std::memcmp(&got[i], &alone[static_cast<size_t>(row * 2 * s.hidden) + column], 4) != 0;
            }
          }
          EXPECT_EQ(wrong, 0) << s.hidden << ", " << rows << " rows, items of " << block << ", run " << run;
          EXPECT_EQ(wrong_shared, 0) << s.hidden << ", " << rows << " rows, items of " << block << ", run " << run;
        }
        const std::vector<uint8_t> scratch = ToHost(step.scratch);
        EXPECT_EQ(std::count(scratch.begin(), scratch.begin() + kExpertTicketBytes, 0), int64_t{kExpertTicketBytes});
      }
    }
  }
}

// One captured launch, lists and all, for any number of rows.
TEST_F(ExpertsSm90Test, AGraphServesOtherCounts) {
  std::mt19937_64 random(std::random_device{}());
  const Size s{WeightFormat::kFp4, 1088, 128, 6, 3, 90};
  const Problem p = MakeProblem(s, random), q = MakeProblem({WeightFormat::kFp8, s.hidden, 192, 1, 1, 1}, random);
  const OnDevice d = Upload(p.layer), d_shared = Upload(q.layer);
  const auto run = [&](const Step& step) {
    step.Launch(nullptr);
    SENKO_CUDA(cudaDeviceSynchronize());
    return step.Result();
  };
  for (const int64_t max_rows : {int64_t{8}, int64_t{60}, s.rows}) {
    const Routing routing = FirstRows(p.routing, max_rows, s.topk);
    const std::vector<uint16_t> codes(p.codes.begin(), p.codes.begin() + max_rows * s.hidden);
    const std::vector<float> all = run(Step(d, p.layer, codes, routing, max_rows, s.topk, 64, {}, &d_shared));
    for (const int64_t block : {8, 16, 32, 64, 128}) {
      const Step step(d, p.layer, codes, routing, max_rows, s.topk, block, {}, &d_shared);
      cuda::CapturedGraph graph([&](cudaStream_t stream) { step.Launch(stream); });
      const auto most = static_cast<int32_t>(max_rows);
      for (const int32_t rows : {most, 1, 0, most - 5, most}) {
        cuda::Overwrite(step.rows, {rows});
        cuda::Overwrite(step.y, std::vector<uint16_t>(step.y.size(), kPoison));
        cuda::Overwrite(step.h, std::vector<uint16_t>(step.h.size(), kPoison));
        graph.Run();
        const std::vector<float> got = step.Result();
        const auto live = static_cast<size_t>(rows * (s.topk + 1) * s.hidden);
        EXPECT_EQ(std::memcmp(got.data(), all.data(), live * 4), 0) << rows << ", items of " << block;
        for (size_t i = 0; i < live; ++i) ASSERT_FALSE(std::isnan(got[i])) << rows << ", items of " << block;
        for (size_t i = live; i < got.size(); ++i) ASSERT_TRUE(std::isnan(got[i])) << rows << ", items of " << block;
      }
    }
  }
}

// Without rounding points: the reference's sums within what float32 leaves of them, for any items, and a NaN in its
// row.
TEST_F(ExpertsSm90Test, FloatExpertsAreTheReferences) {
  std::mt19937_64 random(std::random_device{}());
  ThreadPool pool(8);
  for (const Size s : {Size{WeightFormat::kFp4, 128, 64, 4, 2, 40}, Size{WeightFormat::kFp8, 320, 128, 3, 1, 21},
                       Size{WeightFormat::kFp4, 1088, 320, 5, 3, 19}}) {
    const Problem p = MakeProblem(s, random), q = MakeProblem({WeightFormat::kFp8, s.hidden, 192, 1, 1, 1}, random);
    const OnDevice d = Upload(p.layer), d_shared = Upload(q.layer);
    std::vector<float> x(static_cast<size_t>(s.rows * s.hidden));
    std::normal_distribution<float> normal;
    for (float& v : x) v = 3 * normal(random);
    const auto run = [&](const std::vector<float>& rows_x, int64_t block, int32_t live) {
      Step step(d, p.layer, p.codes, p.routing, s.rows, s.topk, block, {}, &d_shared);
      cuda::Overwrite(step.rows, {live});
      const int64_t pairs = s.rows * s.topk;
      const DeviceBuffer<float> fx = ToDevice(rows_x);
      const DeviceBuffer<float> h = ToDevice(std::vector<float>(static_cast<size_t>(pairs * s.inter), NAN));
      const DeviceBuffer<float> y =
          ToDevice(std::vector<float>(static_cast<size_t>(s.rows * (s.topk + 1) * s.hidden), NAN));
      const DeviceBuffer<float> shared_h = ToDevice(std::vector<float>(static_cast<size_t>(s.rows * 192), NAN));
      BasicExpertsSm90Params<float> f;
      f.num_items = step.p.num_items;
      f.max_items = step.p.max_items;
      f.items = step.p.items;
      f.pairs = step.p.pairs;
      f.block = block;
      f.topk = s.topk;
      f.weights = d.tiles;
      f.x = fx.data();
      f.route_weights = step.p.route_weights;
      f.swiglu_limit = 10;
      f.h = h.data();
      f.y = y.data();
      f.y_row_slots = s.topk + 1;
      f.shared = d_shared.tiles;
      f.rows = step.rows.data();
      f.max_rows = s.rows;
      f.shared_h = shared_h.data();
      DispatchSm90(step.dispatch, nullptr);
      ExpertsSm90(f, nullptr);
      SENKO_CUDA(cudaDeviceSynchronize());
      return ToHost(y);
    };
    const auto rows = static_cast<int32_t>(s.rows);
    const std::vector<float> got = run(x, 8, rows);
    const auto view = [&](const Layer& l, const Matrix& m, int64_t out, int64_t in) {
      return WeightView{l.format, out, in, m.data.data(), m.scale.data()};
    };
    const auto expert = [&](const Layer& l, size_t e) {
      return ExpertWeights{view(l, l.w1[e], l.inter, l.hidden), view(l, l.w3[e], l.inter, l.hidden),
                           view(l, l.w2[e], l.hidden, l.inter)};
    };
    double worst = 0;
    for (int64_t row = 0; row < s.rows; row += 3) {
      for (int64_t k = 0; k <= s.topk; ++k) {
        const auto pair = static_cast<size_t>(row * s.topk + k);
        const ExpertWeights weights =
            k == s.topk ? expert(q.layer, 0) : expert(p.layer, static_cast<size_t>(p.routing.ids[pair]));
        const float weight = k == s.topk ? 1.0f : p.routing.weights[pair];
        std::vector<int32_t> begin = {0, 1}, pairs = {0};
        std::vector<float> y(static_cast<size_t>(s.hidden));
        ExpertsParams r;
        r.rows = 1;
        r.hidden = s.hidden;
        r.inter = weights.w1.out;
        r.num_experts = 1;
        r.topk = 1;
        r.x = x.data() + row * s.hidden;
        r.experts = &weights;
        r.route_weights = &weight;
        r.dispatch = {begin.data(), pairs.data()};
        r.swiglu_limit = 10;
        r.y = y.data();
        ExpertsReference(r, pool);
        double squares = 0, error = 0;
        for (int64_t c = 0; c < s.hidden; ++c) {
          const double want = y[static_cast<size_t>(c)];
          squares += want * want;
          const double off = std::abs(double{got[static_cast<size_t>((row * (s.topk + 1) + k) * s.hidden + c)]} - want);
          error = off <= error ? error : std::isnan(off) ? INFINITY : off;
        }
        worst = std::max(worst, error / std::sqrt(squares / static_cast<double>(s.hidden)));
      }
    }
    // Two sums of a thousand terms behind each other, by 2^-24 of a partial sum each time, and the exponential.
    EXPECT_LE(worst, 1e-5) << s.hidden;
    std::printf("hidden %d: float experts off by %.2g of a row\n", static_cast<int>(s.hidden), worst);
    for (const int64_t block : {32, 64, 128}) {
      EXPECT_EQ(std::memcmp(run(x, block, rows).data(), got.data(), got.size() * 4), 0) << block;
    }
    std::vector<float> spoilt_x = x;
    spoilt_x[static_cast<size_t>(4 * s.hidden + 7)] = NAN;
    const std::vector<float> spoilt = run(spoilt_x, 8, rows - 1);
    const auto row_values = static_cast<size_t>((s.topk + 1) * s.hidden);
    for (size_t i = 0; i < got.size(); ++i) {
      const size_t row = i / row_values;
      if (row == 4 || row == static_cast<size_t>(rows - 1)) {
        ASSERT_TRUE(std::isnan(spoilt[i])) << i;
      } else {
        ASSERT_EQ(spoilt[i], got[i]) << i;
      }
    }
  }
}

}  // namespace
}  // namespace senko::ops
