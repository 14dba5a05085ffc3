// The seam and the coefficients of sm_90a against the reference, and against themselves for any number of rows.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <tuple>
#include <vector>

#include "cuda/test_device.h"
#include "numerics/bf16.h"
#include "ops/mhc/mhc.h"
#include "ops/mhc/mhc_sm90.h"

namespace senko::ops {
namespace {

using cuda::DeviceBuffer;
using cuda::ToDevice;
using cuda::ToHost;

constexpr int64_t kStreams = kMhcStreams;

class MhcSm90Test : public cuda::DeviceTest {};

std::vector<float> RandomFloats(size_t count, float size, std::mt19937_64& random, bool bf16) {
  std::vector<float> v(count);
  std::normal_distribution<float> normal(0, size);
  for (float& f : v) f = bf16 ? numerics::RoundToBf16(normal(random)) : normal(random);
  return v;
}
std::vector<uint16_t> Codes(const std::vector<float>& v) {
  std::vector<uint16_t> codes(v.size());
  for (size_t i = 0; i < v.size(); ++i) codes[i] = numerics::FloatToBf16(v[i]);
  return codes;
}
std::vector<float> Floats(const std::vector<uint16_t>& codes) {
  std::vector<float> v(codes.size());
  for (size_t i = 0; i < v.size(); ++i) v[i] = numerics::Bf16ToFloat(codes[i]);
  return v;
}
__nv_bfloat16* Bf16(const DeviceBuffer<uint16_t>& b) { return reinterpret_cast<__nv_bfloat16*>(b.data()); }

struct Case {
  int64_t rows, hidden;
  std::vector<float> y, post, comb, streams, pre, weight;
};
Case MakeCase(int64_t rows, int64_t hidden, std::mt19937_64& random) {
  const auto n = static_cast<size_t>(rows), d = static_cast<size_t>(hidden);
  Case c{rows,
         hidden,
         RandomFloats(n * d, 1, random, true),
         RandomFloats(n * 4, 1, random, false),
         RandomFloats(n * 16, 0.5f, random, false),
         RandomFloats(n * 4 * d, 1, random, true),
         RandomFloats(n * 4, 1, random, false),
         RandomFloats(d, 1, random, false)};
  return c;
}

struct Seam {
  std::vector<float> streams, x, xq;
};
// c.y: [rows, y_slots, hidden].
Seam RunSeam(const Case& c, int32_t rows, int64_t max_rows, bool expand, int64_t y_slots = 1) {
  const auto all = static_cast<size_t>(max_rows * c.hidden);
  const auto poisoned = [&](std::vector<uint16_t> codes, size_t size) {
    codes.resize(size, 0x7FA5);
    return codes;
  };
  const auto padded = [&](std::vector<float> v, int64_t each) {
    v.resize(static_cast<size_t>(std::max(c.rows, max_rows) * each), NAN);
    return v;
  };
  const DeviceBuffer<uint16_t> y = ToDevice(poisoned(Codes(c.y), all * static_cast<size_t>(y_slots))),
                               streams = ToDevice(poisoned(Codes(c.streams), 4 * all));
  const DeviceBuffer<float> post = ToDevice(padded(c.post, 4)), comb = ToDevice(padded(c.comb, 16)),
                            pre = ToDevice(padded(c.pre, 4)), weight = ToDevice(c.weight);
  const DeviceBuffer<uint16_t> x = ToDevice(std::vector<uint16_t>(all, 0x7FA5)),
                               xq = ToDevice(std::vector<uint16_t>(all, 0x7FA5));
  const DeviceBuffer<int32_t> count = ToDevice(std::vector<int32_t>{rows});
  MhcSeamSm90Params p;
  p.rows = count.data();
  p.max_rows = max_rows;
  p.hidden = c.hidden;
  p.y = expand ? Bf16(y) : nullptr;
  p.y_slots = y_slots;
  p.post = post.data();
  p.comb = comb.data();
  p.streams = Bf16(streams);
  p.pre = pre.data();
  p.norm_weight = weight.data();
  p.rms_eps = 1e-20f;
  p.x = Bf16(x);
  p.xq = Bf16(xq);
  MhcSeamSm90(p, nullptr);
  SENKO_CUDA(cudaDeviceSynchronize());
  return {Floats(ToHost(streams)), Floats(ToHost(x)), Floats(ToHost(xq))};
}

// Neighbouring bf16 values at most: the norm's scale may differ in its last bits.
bool Near(float a, float b) { return std::abs(a - b) <= std::ldexp(std::max(std::abs(a), std::abs(b)), -7); }

TEST_F(MhcSm90Test, TheSeamIsTheReferences) {
  std::mt19937_64 random(std::random_device{}());
  ThreadPool pool(4);
  for (const int64_t hidden : {32, 128, 256, 512, 5120}) {
    for (const bool expand : {true, false}) {
      const int64_t rows = 37;
      const Case c = MakeCase(rows, hidden, random);
      std::vector<float> streams = c.streams;
      if (expand) {
        MhcExpandParams e{rows, kStreams, hidden, c.y.data(), c.post.data(), c.comb.data(), true, streams.data()};
        MhcExpandReference(e, pool);
      }
      std::vector<float> x(static_cast<size_t>(rows * hidden)), xq(x.size());
      MhcCollapseParams k{rows,   kStreams, hidden,  streams.data(), c.pre.data(), c.weight.data(),
                          1e-20f, true,     x.data()};
      MhcCollapseReference(k, pool);
      const Seam got = RunSeam(c, static_cast<int32_t>(rows), 40, expand);
      int64_t other_streams = 0, far = 0, other_x = 0, other_xq = 0;
      for (size_t i = 0; i < streams.size(); ++i) other_streams += got.streams[i] != streams[i];
      for (size_t i = 0; i < x.size(); ++i) {
        far += !Near(got.x[i], x[i]);
        other_x += got.x[i] != x[i];
      }
      EXPECT_EQ(other_streams, 0) << hidden;
      EXPECT_EQ(far, 0) << hidden;
      EXPECT_LE(other_x, static_cast<int64_t>(x.size()) / 500) << hidden;
      RoundActivationsReference(got.x.data(), xq.data(), rows, hidden, pool);
      for (size_t i = 0; i < xq.size(); ++i) other_xq += got.xq[i] != xq[i];
      EXPECT_EQ(other_xq, 0) << hidden;
      for (size_t i = x.size(); i < got.x.size(); ++i) ASSERT_TRUE(std::isnan(got.x[i]) && std::isnan(got.xq[i]));
      for (size_t i = streams.size(); i < got.streams.size(); ++i) ASSERT_TRUE(std::isnan(got.streams[i]));
    }
  }
}

// Slots are summed in float32 in their order and rounded once; then all is as for a y that was their sum.
TEST_F(MhcSm90Test, TheSeamAddsSlotsInTheirOrder) {
  std::mt19937_64 random(std::random_device{}());
  for (const int64_t hidden : {32, 256, 5120}) {
    for (int64_t slots = 1; slots <= kMhcMostSlots; ++slots) {
      const int64_t rows = 11;
      Case summed = MakeCase(rows, hidden, random), slotted = summed;
      slotted.y = RandomFloats(static_cast<size_t>(rows * slots * hidden), 1, random, true);
      for (float& v : slotted.y) v = std::ldexp(v, static_cast<int>(random() % 12));  // so that the order counts
      slotted.y[static_cast<size_t>(((2 * slots) + slots - 1) * hidden + 3)] = NAN;
      slotted.y[static_cast<size_t>((4 * slots) * hidden + hidden - 1)] = NAN;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < hidden; ++i) {
          const float* y = slotted.y.data() + r * slots * hidden + i;
          float sum = y[0];
          for (int64_t s = 1; s < slots; ++s) sum += y[s * hidden];
          summed.y[static_cast<size_t>(r * hidden + i)] = numerics::RoundToBf16(sum);
        }
      }
      const Seam got = RunSeam(slotted, static_cast<int32_t>(rows), rows + 2, true, slots);
      const Seam want = RunSeam(summed, static_cast<int32_t>(rows), rows + 2, true);
      const auto same = [&](const std::vector<float>& a, const std::vector<float>& b) {
        int64_t other = 0;
        for (size_t i = 0; i < a.size(); ++i) {
          other += std::isnan(a[i]) != std::isnan(b[i]) || (!std::isnan(a[i]) && std::memcmp(&a[i], &b[i], 4) != 0);
        }
        EXPECT_EQ(other, 0) << hidden << ", " << slots << " slots";
      };
      same(got.streams, want.streams);
      same(got.x, want.x);
      same(got.xq, want.xq);
      for (const int64_t r : {2, 4}) {  // the norm spreads a NaN over its row
        for (int64_t i = 0; i < hidden; ++i) ASSERT_TRUE(std::isnan(got.x[static_cast<size_t>(r * hidden + i)]));
      }
      for (int64_t i = 0; i < hidden; ++i) ASSERT_FALSE(std::isnan(got.x[static_cast<size_t>(3 * hidden + i)]));
    }
  }
}

// Whether a row lies in a cluster of blocks or in one of them.
TEST_F(MhcSm90Test, TheSeamOfARowIsTheSameAmongAnyRows) {
  std::mt19937_64 random(std::random_device{}());
  for (const int64_t hidden : {32, 288, 1024, 4128, 5120}) {
    for (const int64_t slots : {1, 7}) {
      const int64_t most = 70;
      Case c = MakeCase(most, hidden, random);
      c.y = RandomFloats(static_cast<size_t>(most * slots * hidden), 1, random, true);
      for (const bool expand : {true, false}) {
        const Seam all = RunSeam(c, static_cast<int32_t>(most), most, expand, slots);
        for (const int32_t rows : {0, 1, 9, 64, 65}) {
          for (const int64_t max_rows : {int64_t{rows} + 1, most}) {
            const Seam got = RunSeam(c, rows, max_rows, expand, slots);
            int64_t other = 0;
            for (const auto& [a, b, each] :
                 {std::tuple{&got.streams, &all.streams, 4 * hidden}, std::tuple{&got.x, &all.x, hidden},
                  std::tuple{&got.xq, &all.xq, hidden}}) {
              other += std::memcmp(a->data(), b->data(), static_cast<size_t>(rows * each) * 4) != 0;
            }
            EXPECT_EQ(other, 0) << hidden << ", " << slots << " slots, " << rows << " of " << max_rows;
            for (size_t i = static_cast<size_t>(rows * hidden); i < got.x.size(); ++i) {
              ASSERT_TRUE(std::isnan(got.x[i]) && std::isnan(got.xq[i]));
            }
          }
        }
      }
    }
  }
}

struct Mix {
  std::vector<float> pre, post, comb;
};

TEST_F(MhcSm90Test, CoefficientsAreTheReferencesForAnyRows) {
  std::mt19937_64 random(std::random_device{}());
  ThreadPool pool(4);
  for (const int64_t hidden : {64, 256, 5120}) {
    const int64_t width = kStreams * hidden, most = 150;
    const std::vector<float> fn = RandomFloats(static_cast<size_t>(kMhcOutputs * width), 0.02f, random, false);
    const std::vector<float> base = RandomFloats(24, 1, random, false), scale = {0.7f, 1.3f, 2.0f};
    const std::vector<float> streams = RandomFloats(static_cast<size_t>(most * width), 1, random, true);
    Mix want{std::vector<float>(most * 4), std::vector<float>(most * 4), std::vector<float>(most * 16)};
    std::vector<float> mixes(static_cast<size_t>(most * kMhcOutputs));
    MhcMixParams r;
    r.rows = most;
    r.streams = kStreams;
    r.hidden = hidden;
    r.x = streams.data();
    r.fn = {WeightFormat::kF32, kMhcOutputs, width, reinterpret_cast<const uint8_t*>(fn.data()), nullptr};
    r.base = base.data();
    r.scale = scale.data();
    r.rms_eps = 1e-6f;
    r.hc_eps = 1e-6f;
    r.sinkhorn_iters = 20;
    r.mixes = mixes.data();
    r.pre = want.pre.data();
    r.post = want.post.data();
    r.comb = want.comb.data();
    MhcMixReference(r, pool);

    const DeviceBuffer<float> d_fn = ToDevice(fn), d_base = ToDevice(base), d_scale = ToDevice(scale);
    const DeviceBuffer<uint16_t> split(static_cast<size_t>(3 * kMhcOutputs * width));
    MhcSplitProjection(d_fn.data(), kMhcOutputs, width, Bf16(split), nullptr);
    const DeviceBuffer<uint8_t> tiles(TileBytes(WeightFormat::kBf16, 3 * kMhcOutputs, width));
    const DeviceBuffer<TileFaults> faults = ToDevice(std::vector<TileFaults>(1));
    const TiledWeight weight{WeightFormat::kBf16, 3 * kMhcOutputs, width, tiles.data(), nullptr};
    TileWeight(reinterpret_cast<const uint8_t*>(split.data()), nullptr, weight, tiles.data(), nullptr, faults.data(),
               nullptr);
    const DeviceBuffer<uint16_t> d_streams = ToDevice(Codes(streams));
    Mix first;
    for (const int32_t rows : {150, 1, 7, 64, 65, 149}) {
      const int64_t max_rows = rows == 7 ? 100 : rows;
      const DeviceBuffer<int32_t> count = ToDevice(std::vector<int32_t>{rows});
      const DeviceBuffer<float> scratch = ToDevice(std::vector<float>(MhcMixScratchFloats(hidden, max_rows), NAN));
      const DeviceBuffer<float> pre = ToDevice(std::vector<float>(most * 4, NAN)),
                                post = ToDevice(std::vector<float>(most * 4, NAN)),
                                comb = ToDevice(std::vector<float>(most * 16, NAN));
      MhcMixSm90Params p;
      p.rows = count.data();
      p.max_rows = max_rows;
      p.hidden = hidden;
      p.streams = Bf16(d_streams);
      p.fn = weight;
      p.base = d_base.data();
      p.scale = d_scale.data();
      p.rms_eps = 1e-6f;
      p.hc_eps = 1e-6f;
      p.sinkhorn_iters = 20;
      p.scratch = scratch.data();
      p.pre = pre.data();
      p.post = post.data();
      p.comb = comb.data();
      MhcMixSm90(p, nullptr);
      SENKO_CUDA(cudaDeviceSynchronize());
      const Mix got{ToHost(pre), ToHost(post), ToHost(comb)};
      if (rows == most) {
        first = got;
        // float32 against double: sigmoids and a doubly stochastic matrix of values of about one.
        double worst = 0;
        const auto compare = [&](const std::vector<float>& a, const std::vector<float>& b) {
          for (size_t i = 0; i < a.size(); ++i) {
            const double error = std::abs(double{a[i]} - double{b[i]});
            worst = error <= worst ? worst : error;
          }
        };
        compare(got.pre, want.pre);
        compare(got.post, want.post);
        compare(got.comb, want.comb);
        EXPECT_LE(worst, 1e-5) << hidden;
        std::printf("hidden %d: largest difference of a coefficient %.2g\n", static_cast<int>(hidden), worst);
      }
      const auto same = [&](const std::vector<float>& a, const std::vector<float>& b, int64_t each) {
        EXPECT_EQ(std::memcmp(a.data(), b.data(), static_cast<size_t>(rows * each) * 4), 0) << rows;
        for (size_t i = static_cast<size_t>(rows * each); i < a.size(); ++i) ASSERT_TRUE(std::isnan(a[i]));
      };
      same(got.pre, first.pre, 4);
      same(got.post, first.post, 4);
      same(got.comb, first.comb, 16);
    }
  }
}

// Without rounding points, for any number of streams.
TEST_F(MhcSm90Test, FloatSeamsAreTheReferences) {
  std::mt19937_64 random(std::random_device{}());
  ThreadPool pool(4);
  for (const int64_t hidden : {64, 288, 5120}) {
    for (int64_t streams = 1; streams <= kStreams; ++streams) {
      for (const int64_t slots : {0, 1, 7}) {  // 0: nothing to expand
        const int64_t rows = 13, max_rows = 15;
        const auto floats = [&](int64_t each, float size) {
          return RandomFloats(static_cast<size_t>(rows * each), size, random, false);
        };
        std::vector<float> y = floats(std::max<int64_t>(slots, 1) * hidden, 1), x_streams = floats(streams * hidden, 1);
        const std::vector<float> post = floats(streams, 1), comb = floats(streams * streams, 0.5f),
                                 pre = floats(streams, 1),
                                 weight = RandomFloats(static_cast<size_t>(hidden), 1, random, false);
        y[static_cast<size_t>((3 * std::max<int64_t>(slots, 1)) * hidden + 5)] = NAN;
        std::vector<float> want_streams = x_streams, summed(static_cast<size_t>(rows * hidden));
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < hidden; ++c) {
            float sum = y[static_cast<size_t>(r * std::max<int64_t>(slots, 1) * hidden + c)];
            for (int64_t s = 1; s < slots; ++s) sum += y[static_cast<size_t>((r * slots + s) * hidden + c)];
            summed[static_cast<size_t>(r * hidden + c)] = sum;
          }
        }
        if (slots > 0) {
          MhcExpandReference(
              {rows, streams, hidden, summed.data(), post.data(), comb.data(), false, want_streams.data()}, pool);
        }
        std::vector<float> want(static_cast<size_t>(rows * hidden));
        MhcCollapseReference(
            {rows, streams, hidden, want_streams.data(), pre.data(), weight.data(), 1e-20f, false, want.data()}, pool);
        const auto poisoned = [&](std::vector<float> v) {
          v.resize(v.size() / static_cast<size_t>(rows) * static_cast<size_t>(max_rows), NAN);
          return ToDevice(v);
        };
        const DeviceBuffer<float> d_y = poisoned(y), d_streams = poisoned(x_streams), d_post = poisoned(post),
                                  d_comb = poisoned(comb), d_pre = poisoned(pre), d_weight = ToDevice(weight),
                                  x = ToDevice(std::vector<float>(static_cast<size_t>(max_rows * hidden), NAN));
        const DeviceBuffer<int32_t> count = ToDevice(std::vector<int32_t>{static_cast<int32_t>(rows)});
        BasicMhcSeamSm90Params<float> p;
        p.rows = count.data();
        p.max_rows = max_rows;
        p.num_streams = streams;
        p.hidden = hidden;
        p.y = slots > 0 ? d_y.data() : nullptr;
        p.y_slots = slots;
        p.post = d_post.data();
        p.comb = d_comb.data();
        p.streams = d_streams.data();
        p.pre = d_pre.data();
        p.norm_weight = d_weight.data();
        p.rms_eps = 1e-20f;
        p.x = x.data();
        MhcSeamSm90(p, nullptr);
        SENKO_CUDA(cudaDeviceSynchronize());
        const std::vector<float> got = ToHost(x), got_streams = ToHost(d_streams);
        for (size_t i = 0; i < got_streams.size(); ++i) {
          if (i >= want_streams.size() || std::isnan(want_streams[i])) {
            ASSERT_TRUE(std::isnan(got_streams[i])) << i;
          } else {
            ASSERT_EQ(got_streams[i], want_streams[i]) << i;  // the same operations in the same order
          }
        }
        for (size_t i = 0; i < got.size(); ++i) {
          const size_t row = i / static_cast<size_t>(hidden);
          if (i >= want.size() || (row == 3 && slots > 0)) {
            ASSERT_TRUE(std::isnan(got[i])) << i;
          } else {  // a sum of squares in float32 and its root
            ASSERT_LE(std::abs(got[i] - want[i]), 0x1p-20f * std::abs(want[i])) << i;
          }
        }
      }
    }
  }
}

TEST_F(MhcSm90Test, FloatCoefficientsAreTheReferences) {
  std::mt19937_64 random(std::random_device{}());
  ThreadPool pool(4);
  for (const int64_t hidden : {64, 256, 5120}) {
    for (int64_t streams = 1; streams <= kStreams; ++streams) {
      const int64_t width = streams * hidden, outputs = (2 + streams) * streams, rows = 21, max_rows = 24;
      const auto n = static_cast<size_t>(max_rows * streams), n2 = static_cast<size_t>(max_rows * streams * streams);
      const std::vector<float> fn = RandomFloats(static_cast<size_t>(outputs * width), 0.02f, random, false),
                               base = RandomFloats(static_cast<size_t>(outputs), 1, random, false),
                               scale = {0.7f, 1.3f, 2.0f};
      std::vector<float> x = RandomFloats(static_cast<size_t>(max_rows * width), 1, random, false);
      Mix want{std::vector<float>(n), std::vector<float>(n), std::vector<float>(n2)};
      std::vector<float> mixes(static_cast<size_t>(max_rows * outputs));
      MhcMixParams r;
      r.rows = rows;
      r.streams = streams;
      r.hidden = hidden;
      r.x = x.data();
      r.fn = {WeightFormat::kF32, outputs, width, reinterpret_cast<const uint8_t*>(fn.data()), nullptr};
      r.base = base.data();
      r.scale = scale.data();
      r.rms_eps = 1e-6f;
      r.hc_eps = 1e-6f;
      r.sinkhorn_iters = 20;
      r.mixes = mixes.data();
      r.pre = want.pre.data();
      r.post = want.post.data();
      r.comb = want.comb.data();
      MhcMixReference(r, pool);
      const DeviceBuffer<float> d_fn = ToDevice(fn);
      const DeviceBuffer<uint16_t> split(static_cast<size_t>(3 * outputs * width));
      MhcSplitProjection(d_fn.data(), outputs, width, Bf16(split), nullptr);
      const DeviceBuffer<uint8_t> tiles(TileBytes(WeightFormat::kBf16, 3 * outputs, width));
      const DeviceBuffer<TileFaults> faults = ToDevice(std::vector<TileFaults>(1));
      const TiledWeight weight{WeightFormat::kBf16, 3 * outputs, width, tiles.data(), nullptr};
      TileWeight(reinterpret_cast<const uint8_t*>(split.data()), nullptr, weight, tiles.data(), nullptr, faults.data(),
                 nullptr);
      const DeviceBuffer<float> d_x = ToDevice(x), d_base = ToDevice(base), d_scale = ToDevice(scale),
                                scratch =
                                    ToDevice(std::vector<float>(static_cast<size_t>(max_rows * 3 * outputs), NAN)),
                                pre = ToDevice(std::vector<float>(n, NAN)), post = ToDevice(std::vector<float>(n, NAN)),
                                comb = ToDevice(std::vector<float>(n2, NAN));
      const DeviceBuffer<int32_t> count = ToDevice(std::vector<int32_t>{static_cast<int32_t>(rows)});
      BasicMhcMixSm90Params<float> p;
      p.rows = count.data();
      p.max_rows = max_rows;
      p.num_streams = streams;
      p.hidden = hidden;
      p.streams = d_x.data();
      p.fn = weight;
      p.base = d_base.data();
      p.scale = d_scale.data();
      p.rms_eps = 1e-6f;
      p.hc_eps = 1e-6f;
      p.sinkhorn_iters = 20;
      p.scratch = scratch.data();
      p.pre = pre.data();
      p.post = post.data();
      p.comb = comb.data();
      MhcMixSm90(p, nullptr);
      SENKO_CUDA(cudaDeviceSynchronize());
      const auto compare = [&](const DeviceBuffer<float>& got_on_device, const std::vector<float>& reference,
                               int64_t each) {
        const std::vector<float> got = ToHost(got_on_device);
        for (size_t i = 0; i < got.size(); ++i) {
          if (i < static_cast<size_t>(rows * each)) {  // as for bf16 streams
            ASSERT_LE(std::abs(got[i] - reference[i]), 1e-5f) << streams << " streams of " << hidden;
          } else {
            ASSERT_TRUE(std::isnan(got[i]));
          }
        }
      };
      compare(pre, want.pre, streams);
      compare(post, want.post, streams);
      compare(comb, want.comb, streams * streams);
    }
  }
}

}  // namespace
}  // namespace senko::ops
