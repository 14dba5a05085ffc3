// Window rows, entries and index keys: fast against a composition of the scalar quantisers bit for bit,
// against the reference up to codes on a rounding boundary, and nothing written outside the rows' own bytes.
#include "ops/kv_write/kv_write.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "numerics/bf16.h"
#include "numerics/packed_rows.h"
#include "numerics/quantise.h"
#include "ops/norm/norm.h"
#include "ops/norm/rope_reference.h"

namespace senko::ops {
namespace {

constexpr uint8_t kPoison = 0xA5;
constexpr int64_t kEntriesPerPage = 8;
constexpr int64_t kPages = 6;

std::vector<float> Normal(int64_t count, float spread, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = normal(random);
  return values;
}

// Ten rows with entries scattered over two sequences' pages.
struct Rig {
  int64_t dim, rope_dim, count = 10;
  std::vector<float> x, weight, rope;
  std::vector<LatentRef> latents;
  std::vector<int32_t> pages[2] = {{4, 1}, {0, 5, 2}};
  std::vector<SequenceKv> sequences{2};
  EntryView view;
  std::vector<uint8_t> slab;

  Rig(int64_t d, int64_t r, uint32_t seed, float spread = 1.0f)
      : dim(d),
        rope_dim(r),
        x(Normal(count * d, spread, seed)),
        weight(Normal(d, 0.2f, seed + 1)),
        rope(static_cast<size_t>(count * r)) {
    for (float& w : weight) w += 1.0f;
    std::vector<int64_t> positions;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t entry = i < 4 ? 3 + 4 * i : 2 * i - 5;  // sequence 0: 3 7 11 15; sequence 1: 3 5 .. 13
      latents.push_back({i < 4 ? 0 : 1, entry, i, -1});
      positions.push_back(entry + 70000);
    }
    RopeSpec spec;
    spec.rope_dim = r;
    spec.base = 10000;
    const auto inv_freq = RopeInvFreq(spec);
    RopeTable(positions.data(), count, inv_freq.data(), r / 2, rope.data());
    sequences[0].pages = pages[0].data();
    sequences[1].pages = pages[1].data();
    view.entries_per_page = kEntriesPerPage;
    view.entry_offset = 256;
    view.entry_stride = numerics::EntryStride(dim);
    view.key_value_bytes = numerics::IndexKeyValueBytes(dim);
    view.key_scale_bytes = numerics::IndexKeyScaleBytes(dim);
    view.key_value_offset = numerics::RoundUp(256 + kEntriesPerPage * view.entry_stride, 256);
    view.key_scale_offset = numerics::RoundUp(view.key_value_offset + kEntriesPerPage * view.key_value_bytes, 256);
    view.page_bytes = numerics::RoundUp(view.key_scale_offset + kEntriesPerPage * view.key_scale_bytes, 256);
    Clear();
  }

  void Clear() {
    slab.assign(static_cast<size_t>(kPages * view.page_bytes), kPoison);
    view.slab = slab.data();
  }

  EntryWriteParams Entries(bool round) const {
    return {count, latents.data(), dim, rope_dim, x.data(), rope.data(), round, sequences.data(), view};
  }
  KeyWriteParams Keys(bool round) const {
    return {count,  latents.data(), dim,   rope_dim,         x.data(), weight.data(),
            1e-20f, rope.data(),    round, sequences.data(), view};
  }

  // RMSNorm (or a copy) in the fast path's order and RoPE; the quantisers are the caller's.
  std::vector<float> Rotated(int64_t row, bool norm, bool round) {
    std::vector<float> y(x.begin() + row * dim, x.begin() + (row + 1) * dim);
    ThreadPool pool(1);
    if (norm) RmsNormCpu({1, dim, y.data(), weight.data(), 1e-20f, y.data(), round}, pool);
    RopeRotateReference(y.data() + dim - rope_dim, rope.data() + row * rope_dim, rope_dim / 2, false, round);
    return y;
  }
};

class KvWrite : public ::testing::TestWithParam<std::tuple<int, int, bool>> {
 protected:
  int64_t dim() const { return std::get<0>(GetParam()); }
  int64_t rope_dim() const { return std::get<1>(GetParam()); }
  bool round() const { return std::get<2>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Shapes, KvWrite,
                         ::testing::Values(std::tuple{512, 64, true}, std::tuple{512, 64, false},
                                           std::tuple{64, 16, true}, std::tuple{128, 64, true},
                                           std::tuple{96, 10, false}, std::tuple{32, 32, true}));

TEST_P(KvWrite, EntriesAreTheScalarQuantisersBits) {
  Rig rig(dim(), rope_dim(), 3);
  ThreadPool pool(2);
  EntryWriteCpu(rig.Entries(round()), pool);
  std::vector<uint8_t> expected(rig.slab.size(), kPoison);
  for (int64_t i = 0; i < rig.count; ++i) {
    const std::vector<float> y = rig.Rotated(i, false, round());
    const LatentRef& l = rig.latents[static_cast<size_t>(i)];
    uint8_t* values = rig.view.Entry(rig.sequences[static_cast<size_t>(l.sequence)], l.entry);
    uint8_t* at = expected.data() + (values - rig.slab.data());
    for (int64_t d = 0; d < dim(); d += 16) {
      numerics::QuantiseFp4Block16(&y[static_cast<size_t>(d)], at + d / 2, at + dim() / 2 + d / 16);
    }
  }
  EXPECT_EQ(rig.slab, expected);
  // The arithmetic of an entry is the reference's, so here the two agree bit for bit.
  rig.Clear();
  EntryWriteReference(rig.Entries(round()), pool);
  EXPECT_EQ(rig.slab, expected);
}

TEST_P(KvWrite, KeysAreTheScalarQuantisersBits) {
  Rig rig(dim(), rope_dim(), 4);
  ThreadPool pool(3);
  KeyWriteCpu(rig.Keys(round()), pool);
  std::vector<uint8_t> expected(rig.slab.size(), kPoison);
  for (int64_t i = 0; i < rig.count; ++i) {
    const std::vector<float> y = rig.Rotated(i, true, round());
    const LatentRef& l = rig.latents[static_cast<size_t>(i)];
    const SequenceKv& s = rig.sequences[static_cast<size_t>(l.sequence)];
    uint8_t* values = expected.data() + (rig.view.KeyValues(s, l.entry) - rig.slab.data());
    uint8_t* scales = expected.data() + (rig.view.KeyScales(s, l.entry) - rig.slab.data());
    for (int64_t d = 0; d < dim(); d += 32) {
      numerics::QuantiseFp4(&y[static_cast<size_t>(d)], values + d / 2, scales + d / 32);
    }
  }
  EXPECT_EQ(rig.slab, expected);
}

// RMSNorm sums in another order than the reference, which moves a value by a few 2^-24: a code changes only
// where the value lies on a boundary, and then to a neighbour; the scale is a power of two and changes only
// if the block's maximum lies on one.
TEST_P(KvWrite, KeysAgreeWithTheReferenceUpToBoundaries) {
  Rig rig(dim(), rope_dim(), 5);
  ThreadPool pool(2);
  KeyWriteReference(rig.Keys(round()), pool);
  const std::vector<uint8_t> expected = rig.slab;
  rig.Clear();
  KeyWriteCpu(rig.Keys(round()), pool);
  int64_t differ = 0;
  for (size_t i = 0; i < expected.size(); ++i) differ += expected[i] != rig.slab[i];
  EXPECT_LE(differ, rig.count * dim() / 100);
}

TEST_P(KvWrite, WindowRowsAreTheScalarQuantisersBits) {
  Rig rig(dim(), rope_dim(), 6);
  const int64_t stride = numerics::WindowRowStride(dim()) + 16;
  for (int threads : {1, 3}) {
    std::vector<uint8_t> staging(static_cast<size_t>(rig.count * stride), kPoison), expected(staging);
    const WindowWriteParams p = {rig.count, dim(),           rope_dim(), rig.x.data(), rig.weight.data(),
                                 1e-20f,    rig.rope.data(), round(),    stride,       staging.data()};
    ThreadPool pool(threads);
    WindowWriteCpu(p, pool);
    for (int64_t i = 0; i < rig.count; ++i) {
      const std::vector<float> y = rig.Rotated(i, true, round());
      uint8_t* row = expected.data() + i * stride;
      for (int64_t d = 0; d < dim(); d += 32) {
        numerics::QuantiseFp8(&y[static_cast<size_t>(d)], row + d, row + dim() + d / 32);
      }
    }
    EXPECT_EQ(staging, expected);
    staging.assign(staging.size(), kPoison);
    WindowWriteReference(p, pool);
    int64_t differ = 0;
    for (size_t i = 0; i < staging.size(); ++i) differ += staging[i] != expected[i];
    EXPECT_LE(differ, rig.count * dim() / 100);
  }
}

// The stored bytes stand for the value the model defines: dequantised, a window row is rope(RMSNorm(kv))
// within half a step of its format.
TEST(KvWriteMeaning, DequantisedRowsAreWithinHalfAStep) {
  Rig rig(512, 64, 7);
  const int64_t stride = numerics::WindowRowStride(512);
  std::vector<uint8_t> staging(static_cast<size_t>(rig.count * stride), kPoison);
  ThreadPool pool(2);
  WindowWriteCpu(
      {rig.count, 512, 64, rig.x.data(), rig.weight.data(), 1e-20f, rig.rope.data(), true, stride, staging.data()},
      pool);
  EntryWriteCpu(rig.Entries(true), pool);
  for (int64_t i = 0; i < rig.count; ++i) {
    const std::vector<float> window = rig.Rotated(i, true, true);
    const std::vector<float> entry = rig.Rotated(i, false, true);
    std::vector<float> w(512), e(512);
    const uint8_t* row = staging.data() + i * stride;
    const LatentRef& l = rig.latents[static_cast<size_t>(i)];
    const uint8_t* packed = rig.view.Entry(rig.sequences[static_cast<size_t>(l.sequence)], l.entry);
    for (size_t d = 0; d < 512; d += 32) numerics::DequantiseFp8(row + d, row[512 + d / 32], &w[d]);
    for (size_t d = 0; d < 512; d += 16) numerics::DequantiseFp4Block16(packed + d / 2, packed[256 + d / 16], &e[d]);
    for (size_t d = 0; d < 512; ++d) {
      // e4m3: 2^-4 relative, or half of 2^-9 of the scale, which is at most max / 224. e2m1: half of the
      // widest step (2 of 6), plus the scale's own rounding of 2^-4.
      const float fp8_max = numerics::AbsMax(&window[d / 32 * 32], 32);
      const float fp4_max = numerics::AbsMax(&entry[d / 16 * 16], 16);
      ASSERT_NEAR(w[d], window[d], std::max(std::abs(window[d]) / 16, fp8_max / 224 / 1024));
      ASSERT_NEAR(e[d], entry[d], fp4_max / 6 * 1.13f);
    }
  }
}

TEST(KvWriteMeaning, ANanIsSeenAfterDequantisation) {
  Rig rig(64, 16, 8);
  rig.x[3 * 64 + 5] = std::nanf("");
  ThreadPool pool(2);
  EntryWriteCpu(rig.Entries(true), pool);
  const auto block = [&](size_t i) {
    const LatentRef& l = rig.latents[i];
    const uint8_t* packed = rig.view.Entry(rig.sequences[static_cast<size_t>(l.sequence)], l.entry);
    std::vector<float> out(16);
    numerics::DequantiseFp4Block16(packed, packed[32], out.data());
    return out[5];
  };
  EXPECT_TRUE(std::isnan(block(3)));
  EXPECT_TRUE(std::isfinite(block(2)));
  EXPECT_TRUE(std::isfinite(block(4)));
}

}  // namespace
}  // namespace senko::ops
