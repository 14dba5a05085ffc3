// What the tests of kv_write's kernels share: random rows, and the kernels' own order of a norm on the host.
#pragma once

#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "cuda/test_device.h"
#include "numerics/bf16.h"
#include "numerics/bits.h"

namespace senko::ops {

inline std::vector<float> RandomFloats(int64_t count, float size, std::mt19937_64& random) {
  std::vector<float> v(static_cast<size_t>(count));
  std::normal_distribution<float> normal(0, size);
  for (float& f : v) f = normal(random);
  return v;
}
inline std::vector<uint16_t> RandomCodes(int64_t count, float size, std::mt19937_64& random) {
  std::vector<uint16_t> codes;
  for (const float f : RandomFloats(count, size, random)) codes.push_back(numerics::FloatToBf16(f));
  return codes;
}
inline std::vector<float> Floats(const uint16_t* codes, int64_t count) {
  std::vector<float> v;
  for (int64_t i = 0; i < count; ++i) v.push_back(numerics::Bf16ToFloat(codes[i]));
  return v;
}
inline __nv_bfloat16* Bf16(const cuda::DeviceBuffer<uint16_t>& b) { return reinterpret_cast<__nv_bfloat16*>(b.data()); }

// cos and sin of rows at random positions, [rows, rope_dim / 2, 2].
inline std::vector<float> RandomRope(int64_t rows, int64_t rope_dim, std::mt19937_64& random) {
  std::vector<float> table;
  for (int64_t i = 0; i < rows * rope_dim / 2; ++i) {
    const double angle = static_cast<double>(random() % 1000000) * 1e-3;
    table.push_back(static_cast<float>(std::cos(angle)));
    table.push_back(static_cast<float>(std::sin(angle)));
  }
  return table;
}

// RMSNorm in the kernels' order (norm_lanes_sm90.cuh), rounded to bf16: the same bits.
inline std::vector<float> NormAsTheKernels(const float* x, const float* weight, int64_t cols, float eps) {
  float total = 0;
  for (int64_t begin = 0; begin < cols; begin += 256) {
    float sums[32] = {};
    for (int64_t c = begin; c < std::min(cols, begin + 256); ++c) {
      float& sum = sums[(c - begin) / 8];
      sum = std::fma(x[c], x[c], sum);
    }
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      float other[32];
      for (int l = 0; l < 32; ++l) other[l] = sums[l ^ lanes];
      for (int l = 0; l < 32; ++l) sums[l] += other[l];
    }
    total += sums[0];
  }
  const float scale = 1.0f / std::sqrt(total / static_cast<float>(cols) + eps);
  std::vector<float> y;
  for (int64_t c = 0; c < cols; ++c) y.push_back(numerics::RoundToBf16(weight[c] * (x[c] * scale)));
  return y;
}

// The same bits, or both NaN.
inline bool Same(float a, float b) {
  return std::isnan(a) ? std::isnan(b) : numerics::FloatBits(a) == numerics::FloatBits(b);
}
inline int64_t CountOthers(const float* a, const float* b, int64_t count) {
  int64_t others = 0;
  for (int64_t i = 0; i < count; ++i) others += !Same(a[i], b[i]);
  return others;
}

}  // namespace senko::ops
