// The linears of sm_90a against a double sum over the checkpoint's own bytes, and against each other bit for bit.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "cuda/test_device.h"
#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/quantise.h"
#include "numerics/ue8m0.h"
#include "ops/linear/linear_sm90.h"

namespace senko::ops {
namespace {

using cuda::DeviceBuffer;
using cuda::ToDevice;
using cuda::ToHost;

struct Stored {
  WeightFormat format;
  int64_t out, in;
  std::vector<uint8_t> data, scale;

  int64_t row_bytes() const {
    return format == WeightFormat::kFp4 ? in / 2 : format == WeightFormat::kFp8 ? in : 2 * in;
  }
};

Stored RandomWeight(WeightFormat format, int64_t out, int64_t in, std::mt19937_64& random) {
  Stored w{format, out, in, {}, {}};
  w.data.resize(static_cast<size_t>(out * w.row_bytes()));
  for (uint8_t& b : w.data) {
    b = static_cast<uint8_t>(random());
    if (format == WeightFormat::kFp8 && (b & 0x7F) == 0x7F) b = 0;
  }
  if (format == WeightFormat::kBf16) {
    for (size_t i = 0; i < w.data.size(); i += 2) {
      const uint16_t code = numerics::FloatToBf16(std::normal_distribution<float>(0, 0.1f)(random));
      std::memcpy(w.data.data() + i, &code, 2);
    }
  } else {
    const int64_t rows = format == WeightFormat::kFp8 ? (out + 31) / 32 : out;
    w.scale.resize(static_cast<size_t>(rows * (in / 32)));
    for (uint8_t& s : w.scale) s = static_cast<uint8_t>(127 - 12 + random() % 13);
  }
  return w;
}

// y and the sum of the products' magnitudes, in double, from the stored bytes.
template <typename X>
__global__ void Truth(WeightFormat format, const uint8_t* data, const uint8_t* scale, int64_t out, int64_t in,
                      int64_t group_out, const X* x, int64_t x_stride, int rows, double* y, double* magnitude) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= rows * out) return;
  const int64_t row = i / out, o = i % out;
  double sum = 0, size = 0;
  for (int64_t k = 0; k < in; ++k) {
    double w = 0;
    if (format == WeightFormat::kFp8) {
      w = double{numerics::E4m3ToFloat(data[o * in + k])} * numerics::Ue8m0ToFloat(scale[o / 32 * (in / 32) + k / 32]);
    } else if (format == WeightFormat::kFp4) {
      const uint8_t pair = data[(o * in + k) / 2];
      w = double{numerics::E2m1ToFloat(k % 2 == 0 ? pair & 15 : pair >> 4)} *
          numerics::Ue8m0ToFloat(scale[o * (in / 32) + k / 32]);
    } else {
      const uint8_t* p = data + 2 * (o * in + k);
      w = numerics::Bf16ToFloat(static_cast<uint16_t>(p[0] | p[1] << 8));
    }
    const double product = w * double{static_cast<float>(x[row * x_stride + o / group_out * in + k])};
    sum += product;
    size += fabs(product);
  }
  y[i] = sum;
  magnitude[i] = size;
}

class LinearSm90Test : public cuda::DeviceTest, public testing::WithParamInterface<WeightFormat> {};

struct OnDevice {
  DeviceBuffer<uint8_t> data, scale, tiles, scales;
  DeviceBuffer<TileFaults> faults;
  TiledWeight weight;
};

OnDevice Upload(const Stored& w) {
  OnDevice d;
  d.data = ToDevice(w.data);
  d.scale = ToDevice(w.scale);
  d.tiles = DeviceBuffer<uint8_t>(TileBytes(w.format, w.out, w.in));
  d.scales = DeviceBuffer<uint8_t>(TileScaleBytes(w.format, w.out, w.in));
  d.faults = ToDevice(std::vector<TileFaults>(1));
  d.weight = {w.format, w.out, w.in, d.tiles.data(), d.scales.data()};
  TileWeight(d.data.data(), d.scale.data(), d.weight, d.tiles.data(), d.scales.data(), d.faults.data(), nullptr);
  return d;
}

constexpr uint16_t kPoison = 0x7FA5;  // a NaN

// All of y is NaN before.
std::vector<float> RunLinear(const OnDevice& d, const DeviceBuffer<__nv_bfloat16>& x, int64_t x_stride, int rows,
                             int64_t max_rows, int64_t y_stride, bool as_float,
                             void (*linear)(const LinearSm90Params&, cudaStream_t), int64_t group_out = 0,
                             bool round_activations = false) {
  const DeviceBuffer<int32_t> count = ToDevice(std::vector<int32_t>{rows});
  LinearSm90Params p;
  p.rows = count.data();
  p.max_rows = max_rows;
  p.x = x.data();
  p.x_stride = x_stride;
  p.weight = d.weight;
  p.group_out = group_out;
  p.round_activations = round_activations;
  p.y_stride = y_stride;
  const auto size = static_cast<size_t>(max_rows * y_stride);
  std::vector<float> y(size);
  if (as_float) {
    DeviceBuffer<float> out = ToDevice(std::vector<float>(size, numerics::FloatFromBits(0x7FA5A5A5)));
    p.y_float = out.data();
    linear(p, nullptr);
    SENKO_CUDA(cudaDeviceSynchronize());
    return ToHost(out);
  }
  DeviceBuffer<uint16_t> out = ToDevice(std::vector<uint16_t>(size, kPoison));
  p.y_bf16 = reinterpret_cast<__nv_bfloat16*>(out.data());
  linear(p, nullptr);
  SENKO_CUDA(cudaDeviceSynchronize());
  const std::vector<uint16_t> codes = ToHost(out);
  for (size_t i = 0; i < size; ++i) y[i] = numerics::Bf16ToFloat(codes[i]);
  return y;
}

DeviceBuffer<__nv_bfloat16> RandomRows(int64_t rows, int64_t max_rows, int64_t in, int64_t stride,
                                       std::mt19937_64& random) {
  std::vector<uint16_t> x(static_cast<size_t>(max_rows * stride), kPoison);
  std::normal_distribution<float> normal;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < in; ++k) x[static_cast<size_t>(r * stride + k)] = numerics::FloatToBf16(normal(random));
  }
  DeviceBuffer<__nv_bfloat16> device(x.size());
  SENKO_CUDA(cudaMemcpy(device.data(), x.data(), device.bytes(), cudaMemcpyHostToDevice));
  return device;
}

bool SameBits(float a, float b) { return numerics::FloatBits(a) == numerics::FloatBits(b); }

using Kernel = void (*)(const LinearSm90Params&, cudaStream_t);
const char* NameOf(Kernel linear) {
  return linear == LinearStreamSm90  ? "stream"
         : linear == LinearRingSm90  ? "ring"
         : linear == LinearFewSm90   ? "few"
         : linear == LinearSplitSm90 ? "split"
                                     : "wide";
}
// Those that take the format, and also round as activations.
std::vector<Kernel> Kernels(WeightFormat format, bool rounding = false) {
  std::vector<Kernel> kernels = {LinearStreamSm90, LinearSplitSm90, LinearWideSm90};
  const bool few = format == WeightFormat::kFp8 || (format == WeightFormat::kBf16 && !rounding);
  if (few) kernels.push_back(LinearFewSm90);
  if (format != WeightFormat::kFp4 && !rounding) kernels.push_back(LinearRingSm90);
  return kernels;
}

bool Takes(Kernel linear, int64_t max_rows, int64_t in) {
  return linear != LinearRingSm90 || (max_rows <= 16 && in <= 5120);
}

// The tensor cores align the 16 products and the sum before to the largest exponent and cut (measured: 2e-6 of the sum
// of magnitudes at K = 1,024), chunks then add up to 8 roundings.
constexpr double kBound = 4e-6;

TEST_P(LinearSm90Test, AgreesWithTheTruthAndWithItselfForAnyRows) {
  std::mt19937_64 random(std::random_device{}());
  struct Size {
    int64_t out, in;
  };
  for (const Size size : {Size{64, 64}, Size{4, 128}, Size{96, 192}, Size{200, 1280}, Size{1792, 5120}, Size{512, 2304},
                          Size{320, 8192}, Size{130, 1088}, Size{17000, 192}}) {
    const Stored w = RandomWeight(GetParam(), size.out, size.in, random);
    const OnDevice d = Upload(w);
    const TileFaults faults = ToHost(d.faults)[0];
    EXPECT_EQ(faults.nan_codes + faults.large_scales + faults.small_codes, 0u);
    constexpr int kMost = 300;
    const int64_t x_stride = size.in + 8, y_stride = size.out + 8;
    const DeviceBuffer<__nv_bfloat16> x = RandomRows(kMost, kMost, size.in, x_stride, random);
    DeviceBuffer<double> truth(static_cast<size_t>(kMost * size.out)), magnitude(truth.size());
    Truth<<<static_cast<unsigned>((kMost * size.out + 127) / 128), 128>>>(
        w.format, d.data.data(), d.scale.data(), size.out, size.in, size.out, x.data(), x_stride, kMost, truth.data(),
        magnitude.data());
    SENKO_CUDA(cudaDeviceSynchronize());
    const std::vector<double> want = ToHost(truth), scale = ToHost(magnitude);
    const std::vector<float> all = RunLinear(d, x, x_stride, kMost, kMost, y_stride, true, LinearWideSm90);
    double worst = 0;
    for (int64_t r = 0; r < kMost; ++r) {
      for (int64_t o = 0; o < size.out; ++o) {
        const auto at = static_cast<size_t>(r * size.out + o);
        const double error = std::abs(all[static_cast<size_t>(r * y_stride + o)] - want[at]) / scale[at];
        worst = error <= worst ? worst : error;  // NaN wins
      }
    }
    EXPECT_LE(worst, kBound) << size.out << " x " << size.in;
    for (const int rows : {0, 1, 7, 8, 9, 16, 17, 32, 33, 64, 65, 127, 128, 129, 300}) {
      for (Kernel linear : Kernels(GetParam())) {
        if (!Takes(linear, rows, size.in)) continue;
        const std::vector<float> y = RunLinear(d, x, x_stride, rows, std::max(rows, 1), y_stride, true, linear);
        const std::vector<float> rounded = RunLinear(d, x, x_stride, rows, std::max(rows, 1), y_stride, false, linear);
        int64_t wrong = 0, touched = 0;
        for (int64_t r = 0; r < std::max(rows, 1); ++r) {
          for (int64_t o = 0; o < y_stride; ++o) {
            const auto at = static_cast<size_t>(r * y_stride + o);
            if (r < rows && o < size.out) {
              wrong += !SameBits(y[at], all[at]) || !SameBits(rounded[at], numerics::RoundToBf16(all[at]));
            } else {
              touched += !std::isnan(y[at]) || !std::isnan(rounded[at]);
            }
          }
        }
        EXPECT_EQ(wrong, 0) << size.out << " x " << size.in << ", " << rows << " rows, " << NameOf(linear);
        EXPECT_EQ(touched, 0);
      }
    }
  }
}

// qdq_fp8_32 of a row's blocks of 32, of what has been rounded to bf16.
void RoundActivations(float* row, int64_t columns) {
  for (int64_t i = 0; i < columns; i += numerics::kFp8Block) {
    uint8_t codes[numerics::kFp8Block], scale;
    numerics::QuantiseFp8(row + i, codes, &scale);
    numerics::DequantiseFp8(codes, scale, row + i);
  }
}

// Groups read columns of their own; every kernel the same bits, and the activation rounding behind them.
TEST_P(LinearSm90Test, GroupsReadTheirColumns) {
  std::mt19937_64 random(std::random_device{}());
  struct Size {
    int64_t groups, out, in;  // of a group
  };
  for (const Size size : {Size{2, 64, 256}, Size{8, 128, 128}, Size{3, 192, 192}, Size{5, 64, 1280}, Size{1, 128, 64},
                          Size{4, 320, 2048}, Size{8, 1024, 4096}}) {
    const int64_t out = size.groups * size.out;
    const Stored w = RandomWeight(GetParam(), out, size.in, random);
    const OnDevice d = Upload(w);
    constexpr int kMost = 150;
    const int64_t x_stride = size.groups * size.in + 8, y_stride = out + 8;
    const DeviceBuffer<__nv_bfloat16> x = RandomRows(kMost, kMost + 3, size.groups * size.in, x_stride, random);
    DeviceBuffer<double> truth(static_cast<size_t>(kMost * out)), magnitude(truth.size());
    Truth<<<static_cast<unsigned>((kMost * out + 127) / 128), 128>>>(w.format, d.data.data(), d.scale.data(), out,
                                                                     size.in, size.out, x.data(), x_stride, kMost,
                                                                     truth.data(), magnitude.data());
    SENKO_CUDA(cudaDeviceSynchronize());
    const std::vector<double> want = ToHost(truth), scale = ToHost(magnitude);
    const std::vector<float> all = RunLinear(d, x, x_stride, kMost, kMost, y_stride, true, LinearWideSm90, size.out);
    double worst = 0;
    std::vector<float> rounded(all.size());
    for (int64_t r = 0; r < kMost; ++r) {
      for (int64_t o = 0; o < out; ++o) {
        const auto at = static_cast<size_t>(r * out + o), y_at = static_cast<size_t>(r * y_stride + o);
        const double error = std::abs(all[y_at] - want[at]) / scale[at];
        worst = error <= worst ? worst : error;  // NaN wins
        rounded[y_at] = numerics::RoundToBf16(all[y_at]);
      }
      RoundActivations(rounded.data() + r * y_stride, out);
    }
    EXPECT_LE(worst, kBound) << size.groups << " of " << size.out << " x " << size.in;
    for (const int rows : {1, 8, 13, 16, 31, 64, 65, 128, 150}) {
      for (Kernel linear : Kernels(GetParam(), true)) {
        const int64_t most = rows + 3;
        const std::vector<float> y = RunLinear(d, x, x_stride, rows, most, y_stride, true, linear, size.out);
        const std::vector<float> yq = RunLinear(d, x, x_stride, rows, most, y_stride, false, linear, size.out, true);
        int64_t wrong = 0, wrong_rounded = 0, touched = 0;
        for (int64_t r = 0; r < most; ++r) {
          for (int64_t o = 0; o < y_stride; ++o) {
            const auto at = static_cast<size_t>(r * y_stride + o);
            if (r < rows && o < out) {
              wrong += !SameBits(y[at], all[at]);
              wrong_rounded += !SameBits(yq[at], rounded[at]);
            } else {
              touched += !std::isnan(y[at]) || !std::isnan(yq[at]);
            }
          }
        }
        EXPECT_EQ(wrong, 0) << size.groups << " of " << size.out << " x " << size.in << ", " << rows << " rows, "
                            << NameOf(linear);
        EXPECT_EQ(wrong_rounded, 0) << size.groups << " of " << size.out << " x " << size.in << ", " << rows
                                    << " rows, " << NameOf(linear);
        EXPECT_EQ(touched, 0);
      }
    }
  }
}

// A NaN of a group's columns makes the outputs of that group in that row NaN, also rounded, and nothing else.
TEST_P(LinearSm90Test, ANanStaysInItsGroup) {
  std::mt19937_64 random(std::random_device{}());
  constexpr int kRows = 20;
  constexpr int64_t kGroups = 3, kOut = 64, kIn = 1280, kStride = kGroups * kIn;
  const OnDevice d = Upload(RandomWeight(GetParam(), kGroups * kOut, kIn, random));
  const DeviceBuffer<__nv_bfloat16> x = RandomRows(kRows, kRows, kStride, kStride, random);
  const uint16_t nan = 0xFFC1;
  SENKO_CUDA(cudaMemcpy(x.data() + 7 * kStride + kIn + 1100, &nan, 2, cudaMemcpyHostToDevice));
  for (Kernel linear : Kernels(GetParam(), true)) {
    for (const bool rounded : {false, true}) {
      const std::vector<float> y = RunLinear(d, x, kStride, kRows, kRows, kGroups * kOut, false, linear, kOut, rounded);
      for (size_t i = 0; i < y.size(); ++i) {
        const bool its = i / (kGroups * kOut) == 7 && i % (kGroups * kOut) / kOut == 1;
        ASSERT_EQ(std::isnan(y[i]), its) << NameOf(linear) << ' ' << i;
      }
    }
  }
}

// Fewer rows than the launch allows for: what lies behind them reaches nothing, and is not written.
TEST_P(LinearSm90Test, RowsThatAreNotThereDoNotMatter) {
  std::mt19937_64 random(std::random_device{}());
  const Stored w = RandomWeight(GetParam(), 192, 1280, random);
  const OnDevice d = Upload(w);
  for (const int rows : {1, 5, 63, 100}) {
    const DeviceBuffer<__nv_bfloat16> x = RandomRows(rows, 256, 1280, 1280, random);
    const std::vector<float> want = RunLinear(d, x, 1280, rows, rows, 192, true, LinearStreamSm90);
    for (const int64_t most : {int64_t{rows}, int64_t{16}, int64_t{64}, int64_t{256}}) {
      if (most < rows) continue;
      for (Kernel linear : Kernels(GetParam())) {
        if (!Takes(linear, most, 1280)) continue;
        const std::vector<float> y = RunLinear(d, x, 1280, rows, most, 192, true, linear);
        for (size_t i = 0; i < y.size(); ++i) {
          if (i < want.size()) {
            ASSERT_TRUE(SameBits(y[i], want[i])) << i;
          } else {
            ASSERT_TRUE(std::isnan(y[i])) << i;
          }
        }
      }
    }
  }
}

// One captured launch of each kernel for any number of rows.
TEST_P(LinearSm90Test, AGraphServesOtherCounts) {
  std::mt19937_64 random(std::random_device{}());
  constexpr int64_t kMost = 140, kOut = 192, kIn = 1280;
  const OnDevice d = Upload(RandomWeight(GetParam(), kOut, kIn, random));
  const DeviceBuffer<__nv_bfloat16> x = RandomRows(kMost, kMost, kIn, kIn, random);
  const std::vector<float> all = RunLinear(d, x, kIn, kMost, kMost, kOut, true, LinearWideSm90);
  const DeviceBuffer<int32_t> count(1);
  const DeviceBuffer<float> y(all.size());
  LinearSm90Params p;
  p.rows = count.data();
  p.max_rows = kMost;
  p.x = x.data();
  p.x_stride = kIn;
  p.weight = d.weight;
  p.y_float = y.data();
  p.y_stride = kOut;
  for (Kernel linear : Kernels(GetParam())) {
    p.max_rows = Takes(linear, kMost, kIn) ? kMost : 16;
    cuda::CapturedGraph graph([&](cudaStream_t stream) { linear(p, stream); });
    for (const int32_t rows : {140, 1, 0, 17, 9, 129}) {
      if (rows > p.max_rows) continue;
      cuda::Overwrite(count, {rows});
      cuda::Overwrite(y, std::vector<float>(y.size(), NAN));
      graph.Run();
      const std::vector<float> got = ToHost(y);
      int64_t wrong = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        wrong += i < static_cast<size_t>(rows * kOut) ? !SameBits(got[i], all[i]) : !std::isnan(got[i]);
      }
      EXPECT_EQ(wrong, 0) << NameOf(linear) << ' ' << rows;
    }
  }
}

// Each code with each scale that is not refused, against 2^60 in one column: the very product. (2^60, so that no sum is
// below float32's normal values.)
TEST_P(LinearSm90Test, EveryCodeTimesEveryScaleIsExact) {
  if (GetParam() == WeightFormat::kBf16) return;
  const bool fp8 = GetParam() == WeightFormat::kFp8;
  constexpr int64_t kIn = 64;
  const int64_t scales = fp8 ? 135 : 129, out = fp8 ? 32 * scales : 2 * scales;
  Stored w{GetParam(), out, kIn, {}, {}};
  w.data.resize(static_cast<size_t>(out * w.row_bytes()));
  for (size_t i = 0; i < w.data.size(); ++i) {
    const auto v = static_cast<uint8_t>(i % 254);
    w.data[i] = fp8 ? (v < 127 ? v : v + 1) : static_cast<uint8_t>(i * 37 + i / 32);  // no NaN; all pairs of nibbles
  }
  for (int64_t s = 0; s < (fp8 ? scales : out); ++s) w.scale.insert(w.scale.end(), 2, static_cast<uint8_t>(s % scales));
  const OnDevice d = Upload(w);
  std::vector<uint16_t> x(kIn * kIn);
  for (size_t i = 0; i < kIn; ++i) x[i * kIn + i] = numerics::FloatToBf16(0x1p60f);
  DeviceBuffer<__nv_bfloat16> rows(x.size());
  SENKO_CUDA(cudaMemcpy(rows.data(), x.data(), rows.bytes(), cudaMemcpyHostToDevice));
  std::vector<float> want(static_cast<size_t>(kIn * out));
  std::vector<bool> seen(256);
  uint32_t small = 0;
  for (int64_t o = 0; o < out; ++o) {
    for (int64_t k = 0; k < kIn; ++k) {
      const uint8_t byte = w.data[static_cast<size_t>(fp8 ? o * kIn + k : (o * kIn + k) / 2)];
      const uint8_t code = fp8 ? byte : k % 2 == 0 ? byte & 15 : byte >> 4;
      const uint8_t scale = w.scale[static_cast<size_t>((fp8 ? o / 32 : o) * 2 + k / 32)];
      const float value = fp8 ? numerics::E4m3ToFloat(code) : numerics::E2m1ToFloat(code);
      const float product = value * numerics::Ue8m0ToFloat(scale);  // exact in float32
      const bool lost = numerics::RoundToBf16(product) != product;
      small += lost;
      seen[code] = true;
      want[static_cast<size_t>(k * out + o)] = lost ? NAN : product * 0x1p60f;
    }
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), fp8 ? 254 : 16);
  SENKO_CUDA(cudaDeviceSynchronize());
  const TileFaults faults = ToHost(d.faults)[0];
  EXPECT_EQ(faults.nan_codes + faults.large_scales, 0u);
  EXPECT_EQ(faults.small_codes, small);
  for (Kernel linear : Kernels(GetParam())) {
    if (!Takes(linear, kIn, kIn)) continue;
    const std::vector<float> y = RunLinear(d, rows, kIn, kIn, kIn, out, true, linear);
    int64_t wrong = 0;
    for (size_t i = 0; i < y.size(); ++i) wrong += !std::isnan(want[i]) && y[i] != want[i];
    EXPECT_EQ(wrong, 0) << NameOf(linear);
  }
}

// The chunks' sums alone: added in order they are the outputs, for any number of rows.
TEST_P(LinearSm90Test, ChunksAddUp) {
  if (GetParam() != WeightFormat::kBf16) return;
  std::mt19937_64 random(std::random_device{}());
  struct Size {
    int64_t out, in;
  };
  for (const Size size : {Size{16, 128}, Size{72, 20480}, Size{384, 5120}, Size{40, 1088}}) {
    constexpr int64_t kMost = 70;
    const int64_t chunks = LinearChunks(size.in);
    const OnDevice d = Upload(RandomWeight(GetParam(), size.out, size.in, random));
    const DeviceBuffer<__nv_bfloat16> x = RandomRows(kMost, kMost, size.in, size.in, random);
    const std::vector<float> all = RunLinear(d, x, size.in, kMost, kMost, size.out, true, LinearWideSm90);
    const DeviceBuffer<int32_t> count(1);
    const DeviceBuffer<float> y(static_cast<size_t>(chunks * kMost * size.out));
    for (const int64_t max_rows : {1, 8, 9, 32, 64, 70}) {
      for (const int64_t rows : {max_rows, max_rows / 2}) {
        cuda::Overwrite(count, {static_cast<int32_t>(rows)});
        cuda::Overwrite(y, std::vector<float>(y.size(), NAN));
        LinearSm90Params p;
        p.rows = count.data();
        p.max_rows = max_rows;
        p.x = x.data();
        p.x_stride = size.in;
        p.weight = d.weight;
        p.y_chunks = y.data();
        LinearChunksSm90(p, nullptr);
        SENKO_CUDA(cudaDeviceSynchronize());
        const std::vector<float> got = ToHost(y);
        int64_t wrong = 0;
        for (int64_t i = 0; i < max_rows * size.out; ++i) {
          float sum = got[static_cast<size_t>(i)];
          for (int64_t c = 1; c < chunks; ++c) sum += got[static_cast<size_t>(c * max_rows * size.out + i)];
          wrong += i < rows * size.out ? !SameBits(sum, all[static_cast<size_t>(i)]) : !std::isnan(sum);
        }
        EXPECT_EQ(wrong, 0) << size.out << " x " << size.in << ", " << rows << " of " << max_rows;
        for (size_t i = static_cast<size_t>(chunks * max_rows * size.out); i < got.size(); ++i) {
          ASSERT_TRUE(std::isnan(got[i]));
        }
      }
    }
  }
}

// What cannot be computed exactly is counted.
// Without rounding points: the sum within what float32 leaves of it, a row's bits its own, and rows of bf16 like the
// same rows of float32.
TEST_P(LinearSm90Test, FloatRowsAreTheTruths) {
  std::mt19937_64 random(std::random_device{}());
  struct Size {
    int64_t out, in, groups;
  };
  for (const Size& size : {Size{1000, 64, 1}, Size{72, 1088, 1}, Size{256, 5120, 1}, Size{192, 320, 3}}) {
    const auto [out, in, groups] = size;
    const Stored w = RandomWeight(GetParam(), out, in, random);
    const OnDevice d = Upload(w);
    const int64_t group_out = out / groups, x_stride = groups * in + 2, y_stride = out + 3, max_rows = 43;
    const int most = 37;
    std::vector<float> rows(static_cast<size_t>(max_rows * x_stride), NAN);
    std::vector<uint16_t> codes(rows.size(), kPoison);
    std::normal_distribution<float> normal;
    const auto run = [&](const std::vector<float>& x_rows, bool bf16, int count) {
      const DeviceBuffer<float> x = ToDevice(x_rows), y = ToDevice(std::vector<float>(max_rows * y_stride, NAN));
      const DeviceBuffer<uint16_t> x_codes = ToDevice(codes);
      const DeviceBuffer<int32_t> live = ToDevice(std::vector<int32_t>{0});
      LinearFloatSm90Params p;
      p.rows = live.data();
      p.max_rows = max_rows;
      p.x_bf16 = bf16 ? reinterpret_cast<const __nv_bfloat16*>(x_codes.data()) : nullptr;
      p.x = bf16 ? nullptr : x.data();
      p.x_stride = x_stride;
      p.weight = d.weight;
      p.group_out = groups > 1 ? group_out : 0;
      p.y = y.data();
      p.y_stride = y_stride;
      cuda::CapturedGraph graph([&](cudaStream_t stream) { LinearFloatSm90(p, stream); });
      cuda::Overwrite(live, {count});
      graph.Run();
      return ToHost(y);
    };
    for (int r = 0; r < most; ++r) {
      for (int64_t k = 0; k < groups * in; ++k) rows[static_cast<size_t>(r * x_stride + k)] = normal(random);
    }
    const std::vector<float> all = run(rows, false, most);

    const DeviceBuffer<float> x = ToDevice(rows);
    const DeviceBuffer<double> truth(static_cast<size_t>(most * out)), magnitude(static_cast<size_t>(most * out));
    Truth<<<static_cast<unsigned>((most * out + 127) / 128), 128>>>(w.format, d.data.data(), d.scale.data(), out, in,
                                                                    group_out, x.data(), x_stride, most, truth.data(),
                                                                    magnitude.data());
    SENKO_CUDA(cudaDeviceSynchronize());
    const std::vector<double> want = ToHost(truth), scale = ToHost(magnitude);
    double worst = 0;
    for (int64_t r = 0; r < max_rows; ++r) {
      for (int64_t o = 0; o < y_stride; ++o) {
        const float got = all[static_cast<size_t>(r * y_stride + o)];
        if (r >= most || o >= out) {
          ASSERT_TRUE(std::isnan(got)) << r << ' ' << o;
          continue;
        }
        const auto i = static_cast<size_t>(r * out + o);
        const double error = std::abs(double{got} - want[i]) / scale[i];
        worst = error <= worst ? worst : std::isnan(error) ? INFINITY : error;
      }
    }
    // Some 256 roundings of random sign, each by 2^-24 of a partial sum.
    EXPECT_LE(worst, 0x1p-20) << out << " x " << in;
    for (const int count : {1, 8, 9, 0}) {
      const std::vector<float> few = run(rows, false, count);
      EXPECT_EQ(std::memcmp(few.data(), all.data(), static_cast<size_t>(count * y_stride) * 4), 0) << count;
      for (size_t i = static_cast<size_t>(count * y_stride); i < few.size(); ++i) ASSERT_TRUE(std::isnan(few[i]));
    }
    rows[static_cast<size_t>(5 * x_stride + 3)] = NAN;  // of the first group
    const std::vector<float> spoilt = run(rows, false, most);
    for (int64_t o = 0; o < out; ++o) {
      ASSERT_EQ(std::isnan(spoilt[static_cast<size_t>(5 * y_stride + o)]), o < group_out);
      ASSERT_EQ(spoilt[static_cast<size_t>(6 * y_stride + o)], all[static_cast<size_t>(6 * y_stride + o)]);
    }
    for (int r = 0; r < most; ++r) {
      for (int64_t k = 0; k < groups * in; ++k) {
        const auto i = static_cast<size_t>(r * x_stride + k);
        codes[i] = numerics::FloatToBf16(normal(random));
        rows[i] = numerics::Bf16ToFloat(codes[i]);
      }
    }
    EXPECT_EQ(std::memcmp(run(rows, true, most).data(), run(rows, false, most).data(),
                          static_cast<size_t>(out) * sizeof(float)),
              0);
  }
}

TEST_P(LinearSm90Test, FaultsAreCounted) {
  if (GetParam() == WeightFormat::kBf16) return;
  std::mt19937_64 random(1);
  Stored w = RandomWeight(GetParam(), 100, 128, random);
  w.scale[3] = 255;
  w.scale[5] = 200;
  if (GetParam() == WeightFormat::kFp8) w.data[100 * 128 - 1] = 0xFF;
  const OnDevice d = Upload(w);
  SENKO_CUDA(cudaDeviceSynchronize());
  const TileFaults faults = ToHost(d.faults)[0];
  EXPECT_EQ(faults.nan_codes, GetParam() == WeightFormat::kFp8 ? 2u : 1u);
  EXPECT_EQ(faults.large_scales, 1u);
  EXPECT_EQ(faults.small_codes, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Formats, LinearSm90Test, testing::Values(WeightFormat::kFp8, WeightFormat::kFp4, WeightFormat::kBf16),
    [](const auto& one) {
      return std::string(one.param == WeightFormat::kFp8 ? "fp8" : one.param == WeightFormat::kFp4 ? "fp4" : "bf16");
    });

}  // namespace
}  // namespace senko::ops
