// The tiles the kernels read are the scalar dequantisers' values, bit for bit, on every instruction set:
// reading keys packed is reading them expanded.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attention/key_tiles_test.cc"
#include <hwy/foreach_target.h>
// after foreach_target.h, as Highway wants it
#include "ops/attention/key_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace senko::ops::HWY_NAMESPACE {
namespace {

// by_channel[dim][kPanel] of 32 rows, and panel[32][kPanel] of the channels d .. d + 31.
void WindowTiles(const uint8_t* const* rows, int64_t dim, int64_t d, float* by_channel, float* panel) {
  for (int64_t half = 0; half < kPanel; half += 16) WindowKeysByChannel(rows + half, dim, by_channel + half);
  WindowValues(rows, kPanel, dim, d, panel);
}

void EntryTiles(const uint8_t* const* rows, int64_t dim, int64_t d, float* by_channel, float* panel) {
  alignas(64) float e4m3[256];
  FillE4m3Table(e4m3);
  for (int64_t half = 0; half < kPanel; half += 16) EntryKeysByChannel(rows + half, dim, by_channel + half);
  EntryValues(rows, kPanel, dim, d, e4m3, panel);
}

}  // namespace
}  // namespace senko::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "numerics/packed_rows.h"
#include "numerics/quantise.h"
#include "ops/each_target.h"
#include "tensor/buffer.h"

namespace senko::ops {

HWY_EXPORT(WindowTiles);
HWY_EXPORT(EntryTiles);

namespace {

// Equal bits, but any NaN equals any NaN.
bool Same(float a, float b) { return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof(a)) == 0; }

// 32 rows of random bytes: every code and scale occurs, NaN codes included.
struct RandomRows {
  std::vector<std::vector<uint8_t>> bytes;
  std::vector<const uint8_t*> rows;

  RandomRows(int64_t stride, uint32_t seed) : bytes(32, std::vector<uint8_t>(static_cast<size_t>(stride))) {
    std::mt19937 random(seed);
    for (auto& row : bytes) {
      for (uint8_t& b : row) b = static_cast<uint8_t>(random());
      rows.push_back(row.data());
    }
  }
};

template <typename Tiles>
void CheckTiles(int64_t dim, const RandomRows& random, const std::vector<std::vector<float>>& expected, Tiles tiles) {
  Buffer<float> by_channel(static_cast<size_t>(dim * kPanel)), panel(32 * kPanel);
  for (int64_t d = 0; d < dim; d += 32) {
    std::fill_n(by_channel.data(), by_channel.size(), -77.0f);
    std::fill_n(panel.data(), panel.size(), -77.0f);
    tiles(random.rows.data(), dim, d, by_channel.data(), panel.data());
    for (int64_t k = 0; k < 32; ++k) {
      for (int64_t c = 0; c < 32; ++c) {
        const float want = expected[static_cast<size_t>(k)][static_cast<size_t>(d + c)];
        ASSERT_TRUE(Same(want, by_channel[static_cast<size_t>((d + c) * kPanel + k)])) << k << " " << d + c << " ";
        ASSERT_TRUE(Same(want, panel[static_cast<size_t>(k * kPanel + c)])) << k << " " << d + c;
      }
    }
  }
}

TEST(KeyTiles, AreTheScalarDequantisersBits) {
  for (int64_t dim : {32, 64, 96, 256, 512, 544, 1024}) {
    const RandomRows window(numerics::WindowRowStride(dim), static_cast<uint32_t>(dim));
    const RandomRows entries(numerics::EntryStride(dim), static_cast<uint32_t>(dim + 1));
    std::vector<std::vector<float>> window_values(32, std::vector<float>(static_cast<size_t>(dim)));
    std::vector<std::vector<float>> entry_values(window_values);
    for (size_t k = 0; k < 32; ++k) {
      const uint8_t* w = window.rows[k];
      const uint8_t* e = entries.rows[k];
      for (int64_t d = 0; d < dim; d += 32) {
        numerics::DequantiseFp8(w + d, w[dim + d / 32], &window_values[k][static_cast<size_t>(d)]);
      }
      for (int64_t d = 0; d < dim; d += 16) {
        numerics::DequantiseFp4Block16(e + d / 2, e[dim / 2 + d / 16], &entry_values[k][static_cast<size_t>(d)]);
      }
    }
    ForEachTarget([&] {
      CheckTiles(dim, window, window_values, HWY_DYNAMIC_DISPATCH(WindowTiles));
      CheckTiles(dim, entries, entry_values, HWY_DYNAMIC_DISPATCH(EntryTiles));
    });
  }
}

}  // namespace
}  // namespace senko::ops

#endif
