// The grouped output projection of sm_90a against the reference, stage by stage, and against itself for any rows.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "cuda/test_device.h"
#include "numerics/bf16.h"
#include "ops/output_proj/output_proj.h"
#include "ops/output_proj/output_proj_sm90.h"

namespace senko::ops {
namespace {

using cuda::DeviceBuffer;
using cuda::ToDevice;
using cuda::ToHost;

class OutputProjSm90Test : public cuda::DeviceTest {};

struct Stored {
  int64_t out, in;
  std::vector<uint8_t> data, scale;
  DeviceBuffer<uint8_t> tiles, scales;

  WeightView view() const { return {WeightFormat::kFp8, out, in, data.data(), scale.data()}; }
  TiledWeight tiled() const { return {WeightFormat::kFp8, out, in, tiles.data(), scales.data()}; }
};

Stored RandomWeight(int64_t out, int64_t in, std::mt19937_64& random) {
  Stored w{out,
           in,
           std::vector<uint8_t>(static_cast<size_t>(out * in)),
           std::vector<uint8_t>(static_cast<size_t>(out / 32 * (in / 32))),
           {},
           {}};
  for (uint8_t& b : w.data) {
    b = static_cast<uint8_t>(random());
    if ((b & 0x7F) == 0x7F) b = 0;
  }
  for (uint8_t& s : w.scale) s = static_cast<uint8_t>(127 - 12 + random() % 3);
  const DeviceBuffer<uint8_t> data = ToDevice(w.data), scale = ToDevice(w.scale);
  w.tiles = DeviceBuffer<uint8_t>(TileBytes(WeightFormat::kFp8, out, in));
  w.scales = DeviceBuffer<uint8_t>(TileScaleBytes(WeightFormat::kFp8, out, in));
  const DeviceBuffer<TileFaults> faults = ToDevice(std::vector<TileFaults>(1));
  TileWeight(data.data(), scale.data(), w.tiled(), w.tiles.data(), w.scales.data(), faults.data(), nullptr);
  SENKO_CUDA(cudaDeviceSynchronize());
  return w;
}

std::vector<float> Floats(const std::vector<uint16_t>& codes) {
  std::vector<float> v(codes.size());
  for (size_t i = 0; i < v.size(); ++i) v[i] = numerics::Bf16ToFloat(codes[i]);
  return v;
}
__nv_bfloat16* Bf16(const DeviceBuffer<uint16_t>& b) { return reinterpret_cast<__nv_bfloat16*>(b.data()); }

struct Projected {
  std::vector<float> u, y;
};

// Outputs are NaN before.
Projected Project(const Stored& wo_a, const Stored& wo_b, int64_t groups, const DeviceBuffer<uint16_t>& o, int rows,
                  int64_t max_rows, bool round) {
  const DeviceBuffer<int32_t> count = ToDevice(std::vector<int32_t>{rows});
  const DeviceBuffer<uint16_t> u = ToDevice(std::vector<uint16_t>(static_cast<size_t>(max_rows * wo_a.out), 0x7FA5)),
                               y = ToDevice(std::vector<uint16_t>(static_cast<size_t>(max_rows * wo_b.out), 0x7FA5));
  OutputProjSm90Params p;
  p.rows = count.data();
  p.max_rows = max_rows;
  p.groups = groups;
  p.o = Bf16(o);
  p.wo_a = wo_a.tiled();
  p.wo_b = wo_b.tiled();
  p.u = Bf16(u);
  p.y = Bf16(y);
  p.round_activations = round;
  OutputProjSm90(p, nullptr);
  SENKO_CUDA(cudaDeviceSynchronize());
  return {Floats(ToHost(u)), Floats(ToHost(y))};
}

struct Size {
  int64_t groups, rank, in, hidden;
};
constexpr Size kSizes[] = {{2, 64, 256, 256}, {1, 64, 64, 96}, {3, 192, 128, 512}, {8, 1024, 4096, 5120}};

std::vector<uint16_t> RandomCodes(size_t count, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  std::vector<uint16_t> codes(count);
  for (uint16_t& c : codes) c = numerics::FloatToBf16(normal(random));
  return codes;
}

// Each stage on the same inputs as its reference, which is given the device's u: a rounding boundary of u would
// otherwise become a whole step of an activation.
TEST_F(OutputProjSm90Test, StagesAreTheReferences) {
  std::mt19937_64 random(std::random_device{}());
  ThreadPool pool(8);
  for (const Size size : kSizes) {
    const int64_t width = size.groups * size.rank, rows = size.hidden == 5120 ? 2 : 9;
    const Stored wo_a = RandomWeight(width, size.in, random), wo_b = RandomWeight(size.hidden, width, random);
    const std::vector<uint16_t> codes = RandomCodes(static_cast<size_t>(rows * size.groups * size.in), random);
    const std::vector<float> o = Floats(codes);
    const DeviceBuffer<uint16_t> device_o = ToDevice(codes);
    const Projected plain = Project(wo_a, wo_b, size.groups, device_o, static_cast<int>(rows), rows, false);
    const Projected got = Project(wo_a, wo_b, size.groups, device_o, static_cast<int>(rows), rows, true);

    std::vector<float> u(plain.u.size()), y(plain.y.size()), rounded(plain.u.size());
    OutputProjParams r{rows, size.groups, o.data(), wo_a.view(), wo_b.view(), u.data(), y.data(), true, false};
    OutputProjReference(r, pool);
    // Neighbouring values of bf16, but where terms cancel: a sum's error is up to 4e-6 of the sum of its magnitudes
    // (linear_sm90_test.cu), which is at most sqrt(terms) of the root of the sum of squares, and that is the outputs'
    // rms but for the scales' spread, for which 2.
    const auto near = [](float a, float b, double rms, int64_t terms) {
      const double bound =
          std::ldexp(std::max(std::abs(a), std::abs(b)), -7) + 8e-6 * rms * std::sqrt(static_cast<double>(terms));
      return std::abs(double{a} - double{b}) <= bound;
    };
    const auto rms = [](const std::vector<float>& v) {
      double sum = 0;
      for (const float f : v) sum += double{f} * double{f};
      return std::sqrt(sum / static_cast<double>(v.size()));
    };
    int64_t far = 0, other = 0;
    const double u_rms = rms(u);
    for (size_t i = 0; i < u.size(); ++i) {
      far += !near(plain.u[i], u[i], u_rms, size.in);
      other += plain.u[i] != u[i];
    }
    EXPECT_EQ(far, 0) << size.hidden;
    EXPECT_LE(other, static_cast<int64_t>(u.size()) / 50 + 1) << size.hidden;

    RoundActivationsReference(plain.u.data(), rounded.data(), rows, width, pool);
    other = 0;
    for (size_t i = 0; i < u.size(); ++i) other += numerics::FloatBits(got.u[i]) != numerics::FloatBits(rounded[i]);
    EXPECT_EQ(other, 0) << size.hidden;

    for (const Projected* one : {&plain, &got}) {
      LinearParams down;
      down.rows = rows;
      down.x = one->u.data();
      down.x_stride = width;
      down.weight = wo_b.view();
      down.y = y.data();
      down.y_stride = size.hidden;
      down.round_bf16 = true;
      LinearReference(down, pool);
      const double y_rms = rms(y);
      far = other = 0;
      for (size_t i = 0; i < y.size(); ++i) {
        far += !near(one->y[i], y[i], y_rms, width);
        other += one->y[i] != y[i];
      }
      EXPECT_EQ(far, 0) << size.hidden;
      EXPECT_LE(other, static_cast<int64_t>(y.size()) / 50 + 1) << size.hidden;
    }
  }
}

TEST_F(OutputProjSm90Test, ARowHasTheSameBitsAmongAnyRows) {
  std::mt19937_64 random(std::random_device{}());
  for (const Size size : kSizes) {
    const int64_t width = size.groups * size.rank, most = 200;
    const Stored wo_a = RandomWeight(width, size.in, random), wo_b = RandomWeight(size.hidden, width, random);
    const DeviceBuffer<uint16_t> o = ToDevice(RandomCodes(static_cast<size_t>(most * size.groups * size.in), random));
    const Projected all = Project(wo_a, wo_b, size.groups, o, static_cast<int>(most), most, true);
    for (const int rows : {0, 1, 5, 16, 17, 64, 65, 128, 129}) {
      for (const int64_t max_rows : {int64_t{rows}, int64_t{rows} + 1, most}) {
        const Projected got = Project(wo_a, wo_b, size.groups, o, rows, max_rows, true);
        int64_t other = 0, touched = 0;
        const auto compare = [&](const std::vector<float>& a, const std::vector<float>& b, int64_t each) {
          for (size_t i = 0; i < a.size(); ++i) {
            if (i < static_cast<size_t>(rows * each)) {
              other += numerics::FloatBits(a[i]) != numerics::FloatBits(b[i]);
            } else {
              touched += !std::isnan(a[i]);
            }
          }
        };
        compare(got.u, all.u, width);
        compare(got.y, all.y, size.hidden);
        EXPECT_EQ(other, 0) << size.hidden << ", " << rows << " of " << max_rows;
        EXPECT_EQ(touched, 0);
      }
    }
  }
}

// One graph for any number of rows; a NaN in o makes its row of y NaN and no other.
TEST_F(OutputProjSm90Test, AGraphServesOtherCountsAndANanPasses) {
  std::mt19937_64 random(std::random_device{}());
  const Size size = kSizes[0];
  const int64_t width = size.groups * size.rank, most = 40;
  const Stored wo_a = RandomWeight(width, size.in, random), wo_b = RandomWeight(size.hidden, width, random);
  std::vector<uint16_t> codes = RandomCodes(static_cast<size_t>(most * size.groups * size.in), random);
  codes[static_cast<size_t>(3 * size.groups * size.in + 300)] = 0x7FC1;
  const DeviceBuffer<uint16_t> o = ToDevice(codes);
  const Projected all = Project(wo_a, wo_b, size.groups, o, static_cast<int>(most), most, true);
  for (int64_t i = 0; i < most * size.hidden; ++i) {
    ASSERT_EQ(std::isnan(all.y[static_cast<size_t>(i)]), i / size.hidden == 3) << i;
  }
  const DeviceBuffer<int32_t> count(1);
  const DeviceBuffer<uint16_t> u(static_cast<size_t>(most * width)), y(static_cast<size_t>(most * size.hidden));
  OutputProjSm90Params p{count.data(), most, size.groups, Bf16(o), wo_a.tiled(), wo_b.tiled(), Bf16(u), Bf16(y), true};
  cuda::CapturedGraph graph([&](cudaStream_t stream) { OutputProjSm90(p, stream); });
  for (const int32_t rows : {40, 1, 0, 17}) {
    cuda::Overwrite(count, {rows});
    SENKO_CUDA(cudaMemset(y.data(), 0xFF, y.bytes()));
    SENKO_CUDA(cudaMemset(u.data(), 0xFF, u.bytes()));
    graph.Run();
    const std::vector<uint16_t> got = ToHost(y);
    for (size_t i = 0; i < got.size(); ++i) {
      const bool live = i < static_cast<size_t>(rows * size.hidden);
      if (!live) {
        ASSERT_EQ(got[i], 0xFFFF) << i;
      } else if (!std::isnan(all.y[i])) {
        ASSERT_EQ(got[i], numerics::FloatToBf16(all.y[i])) << i;
      }
    }
  }
}

TEST_F(OutputProjSm90Test, FloatRowsAreTheReferences) {
  std::mt19937_64 random(std::random_device{}());
  ThreadPool pool(4);
  std::normal_distribution<float> normal;
  const Size size = kSizes[0];
  const int64_t width = size.groups * size.rank, rows = 11;
  const Stored wo_a = RandomWeight(width, size.in, random), wo_b = RandomWeight(size.hidden, width, random);
  std::vector<float> o(static_cast<size_t>(rows * size.groups * size.in)), u(static_cast<size_t>(rows * width)),
      y(static_cast<size_t>(rows * size.hidden));
  for (float& f : o) f = normal(random);
  const DeviceBuffer<float> d_o = ToDevice(o), d_u = ToDevice(std::vector<float>(u.size(), NAN)),
                            d_y = ToDevice(std::vector<float>(y.size(), NAN));
  const DeviceBuffer<int32_t> count = ToDevice(std::vector<int32_t>{static_cast<int32_t>(rows)});
  OutputProjSm90(
      {count.data(), rows, size.groups, d_o.data(), wo_a.tiled(), wo_b.tiled(), d_u.data(), d_y.data(), false},
      nullptr);
  SENKO_CUDA(cudaDeviceSynchronize());
  OutputProjReference({rows, size.groups, o.data(), wo_a.view(), wo_b.view(), u.data(), y.data(), false, false}, pool);
  const std::vector<float> got = ToHost(d_y);
  double worst = 0, squares = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    const double error = std::abs(double{got[i]} - y[i]);
    worst = error <= worst ? worst : std::isnan(error) ? INFINITY : error;
    squares += double{y[i]} * y[i];
  }
  EXPECT_LE(worst, 2e-5 * std::sqrt(squares / static_cast<double>(y.size())));  // two sums of float32
}

}  // namespace
}  // namespace senko::ops
