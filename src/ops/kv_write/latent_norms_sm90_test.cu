// The norms of both latents: the bits of the scalar quantisers behind a norm in the kernel's order, and the reference's
// values within a step of the format.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "numerics/packed_rows.h"
#include "numerics/quantise.h"
#include "ops/kv_write/kv_write.h"
#include "ops/kv_write/kv_write_sm90.h"
#include "ops/kv_write/sm90_test_rows.h"
#include "ops/norm/rms_row.h"
#include "ops/norm/rope_reference.h"

namespace senko::ops {
namespace {

using cuda::DeviceBuffer;
using cuda::Overwrite;
using cuda::ToDevice;
using cuda::ToHost;

class LatentNormsSm90Test : public cuda::DeviceTest {};

constexpr uint16_t kPoison = 0x7FA5;
constexpr int64_t kRows = 40;
constexpr int64_t kOrdinary = 12;  // rows from here on hold neither NaN nor what leaves the range of float32 squares
constexpr float kEps = 1e-20f;

struct Shape {
  int64_t q_dim, dim, rope_dim;
  bool query;
};
constexpr Shape kShapes[] = {{1280, 512, 64, true}, {64, 32, 8, true},   {64, 64, 16, true},   {128, 64, 16, true},
                             {96, 96, 10, true},    {0, 512, 64, false}, {1280, 0, 0, true},   {64, 32, 32, false},
                             {256, 256, 0, true},   {32, 4096, 2, true}, {2304, 512, 64, true}};

struct Latents {
  Shape shape;
  std::vector<uint16_t> latents;
  std::vector<float> q_weight, kv_weight, rope;
  int64_t row_stride;
  std::vector<uint16_t> q;       // what the kernel shall write
  std::vector<uint8_t> staging;  // likewise

  Latents(const Shape& s, std::mt19937_64& random)
      : shape(s),
        latents(RandomCodes(kRows * (s.q_dim + s.dim), 1, random)),
        q_weight(RandomFloats(s.q_dim, 1, random)),
        kv_weight(RandomFloats(s.dim, 1, random)),
        rope(RandomRope(kRows, s.rope_dim, random)),
        row_stride(numerics::WindowRowStride(s.dim) + 16) {
    const int64_t width = s.q_dim + s.dim;
    const auto value = [&](int64_t row, int64_t column) -> uint16_t& {
      return latents[static_cast<size_t>(row * width + column)];
    };
    for (int64_t row = 0; row < kRows; ++row) {
      // Row 0: zeros. Row 1: squares overflow. Row 2: squares vanish.
      const float size = row == 0   ? 0
                         : row == 1 ? 1e30f
                         : row == 2 ? 1e-30f
                                    : std::ldexp(1.0f, int(random() % 60) - 30);
      for (int64_t c = 0; c < width; ++c) {
        value(row, c) = numerics::FloatToBf16(size * numerics::Bf16ToFloat(value(row, c)));
      }
    }
    if (s.q_dim > 0) value(3, static_cast<int64_t>(random() % s.q_dim)) = 0x7FC1;
    if (s.dim > 0) value(4, s.q_dim + static_cast<int64_t>(random() % s.dim)) = 0xFFC1;
    if (s.dim > 0) value(5, s.q_dim + static_cast<int64_t>(random() % s.dim)) = 0xFF80;
    if (s.q_dim > 0) value(6, s.q_dim - 1) = 0x7F80;
    for (int64_t row = 0; row < kRows; ++row) Expect(row);
  }

  std::vector<float> Query(int64_t row) const { return Floats(&latents[At(row, 0)], shape.q_dim); }
  std::vector<float> Window(int64_t row) const { return Floats(&latents[At(row, shape.q_dim)], shape.dim); }

 private:
  size_t At(int64_t row, int64_t column) const { return static_cast<size_t>(row * (shape.q_dim + shape.dim) + column); }

  void Expect(int64_t row) {
    if (shape.query) {
      const std::vector<float> y = NormAsTheKernels(Query(row).data(), q_weight.data(), shape.q_dim, kEps);
      for (size_t c = 0; c < y.size(); c += 32) {
        uint8_t codes[32], scale;
        float rounded[32];
        numerics::QuantiseFp8(&y[c], codes, &scale);
        numerics::DequantiseFp8(codes, scale, rounded);
        for (const float v : rounded) q.push_back(numerics::FloatToBf16(v));
      }
    }
    if (shape.dim > 0) {
      std::vector<float> y = NormAsTheKernels(Window(row).data(), kv_weight.data(), shape.dim, kEps);
      RopeRotateReference(y.data() + shape.dim - shape.rope_dim, rope.data() + row * shape.rope_dim, shape.rope_dim / 2,
                          false, true);
      staging.resize(static_cast<size_t>((row + 1) * row_stride), 0xA5);
      uint8_t* to = &staging[static_cast<size_t>(row * row_stride)];
      for (int64_t c = 0; c < shape.dim; c += 32) {
        numerics::QuantiseFp8(&y[static_cast<size_t>(c)], to + c, to + shape.dim + c / 32);
      }
    }
  }
};

// `max` latents on the device, again and again the host's, poisoned outputs behind them.
struct OnDevice {
  const Latents& host;
  int64_t max_rows;
  DeviceBuffer<uint16_t> latents, q;
  DeviceBuffer<float> q_weight, kv_weight, rope;
  DeviceBuffer<uint8_t> staging;
  DeviceBuffer<int32_t> count;

  OnDevice(const Latents& l, int64_t max)
      : host(l),
        max_rows(max),
        latents(ToDevice(Repeat(l.latents, (l.shape.q_dim + l.shape.dim) * max))),
        q(static_cast<size_t>(l.shape.q_dim * max)),
        q_weight(ToDevice(l.q_weight)),
        kv_weight(ToDevice(l.kv_weight)),
        rope(ToDevice(Repeat(l.rope, l.shape.rope_dim * max))),
        staging(static_cast<size_t>(l.row_stride * max)),
        count(1) {}

  template <typename T>
  static std::vector<T> Repeat(const std::vector<T>& v, int64_t count) {
    std::vector<T> out;
    for (int64_t i = 0; i < count; ++i) out.push_back(v[static_cast<size_t>(i) % v.size()]);
    return out;
  }

  void Prepare(int32_t rows) {
    Overwrite(count, {rows});
    Overwrite(q, std::vector<uint16_t>(q.size(), kPoison));
    Overwrite(staging, std::vector<uint8_t>(staging.size(), 0xA5));
  }
  void Launch(cudaStream_t stream) const {
    LatentNormsSm90Params p;
    p.rows = count.data();
    p.max_rows = max_rows;
    p.latents = Bf16(latents);
    p.q_dim = host.shape.q_dim;
    p.q_weight = q_weight.data();
    p.q = host.shape.query ? Bf16(q) : nullptr;
    p.dim = host.shape.dim;
    p.rope_dim = host.shape.rope_dim;
    p.kv_weight = kv_weight.data();
    p.rms_eps = kEps;
    p.rope = rope.data();
    p.row_stride = host.row_stride;
    p.staging = staging.data();
    LatentNormsSm90(p, stream);
  }
  // The first `rows` are as expected, the others poison.
  void Check(int32_t rows) const {
    const std::vector<uint16_t> got_q = ToHost(q);
    const std::vector<uint8_t> got_staging = ToHost(staging);
    for (size_t i = 0; i < got_q.size(); ++i) {
      if (host.shape.query && static_cast<int64_t>(i) < rows * host.shape.q_dim) {
        ASSERT_TRUE(Same(numerics::Bf16ToFloat(got_q[i]), numerics::Bf16ToFloat(host.q[i % host.q.size()])))
            << "query value " << i;
      } else {
        ASSERT_EQ(got_q[i], kPoison) << "query value " << i;
      }
    }
    for (size_t i = 0; i < got_staging.size(); ++i) {
      const bool written = host.shape.dim > 0 && static_cast<int64_t>(i) < rows * host.row_stride;
      ASSERT_EQ(got_staging[i], written ? host.staging[i % host.staging.size()] : 0xA5) << "staged byte " << i;
    }
  }
};

TEST_F(LatentNormsSm90Test, EveryBitIsTheScalarRulesForAnyRows) {
  std::mt19937_64 random(std::random_device{}());
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.q_dim << " " << shape.dim << " " << shape.rope_dim);
    const Latents latents(shape, random);
    for (const int32_t rows : {1, 8, 40}) {  // buffers that end with the rows
      OnDevice device(latents, rows);
      device.Prepare(rows);
      device.Launch(nullptr);
      SENKO_CUDA(cudaDeviceSynchronize());
      ASSERT_NO_FATAL_FAILURE(device.Check(rows));
    }
    OnDevice device(latents, kRows);
    cuda::CapturedGraph graph([&](cudaStream_t stream) { device.Launch(stream); });
    for (const int32_t rows : {37, 1, 0, 40, 40, 9}) {
      device.Prepare(rows);
      graph.Run();
      ASSERT_NO_FATAL_FAILURE(device.Check(rows));
    }
  }
}

// More rows than the GPU takes at once.
TEST_F(LatentNormsSm90Test, EveryBitIsTheScalarRulesForManyRows) {
  std::mt19937_64 random(std::random_device{}());
  for (const size_t shape : {0, 1, 5, 6, 9}) {
    const Latents latents(kShapes[shape], random);
    OnDevice device(latents, 9000);
    cuda::CapturedGraph graph([&](cudaStream_t stream) { device.Launch(stream); });
    for (const int32_t rows : {9000, 3, 5799}) {
      device.Prepare(rows);
      graph.Run();
      ASSERT_NO_FATAL_FAILURE(device.Check(rows)) << shape << " " << rows;
    }
  }
}

// How far apart the two may be where the norms round to neighbouring bf16 values, 2^-7 of a value: half a step of e4m3
// each, which is 2^-4 of a value, and of a rotated pair 2^-7 of its length, which is at most 1.42 of the block's
// maximum. That also covers codes below the normal ones, whose steps are 2^-9 of a scale.
float Bound(float v, float block_max) { return 0.16f * std::abs(v) + 0x1p-6f * block_max; }

void CompareBlocks(const float* got, const float* want, int64_t count, int64_t* others) {
  for (int64_t c = 0; c < count; c += 32) {
    const float top = numerics::AbsMax(want + c, 32);
    for (int64_t i = c; i < c + 32; ++i) {
      ASSERT_LE(std::abs(got[i] - want[i]), Bound(want[i], top)) << "column " << i;
      *others += got[i] != want[i];
    }
  }
}

// The float64 reference: where its norm rounds to another bf16 value, the code may be the neighbour.
TEST_F(LatentNormsSm90Test, ValuesAreTheReferencesUpToBoundaries) {
  std::mt19937_64 random(std::random_device{}());
  ThreadPool pool(1);
  for (const Shape& shape : kShapes) {
    const Latents latents(shape, random);
    OnDevice device(latents, kRows);
    device.Prepare(kRows);
    device.Launch(nullptr);
    SENKO_CUDA(cudaDeviceSynchronize());
    const std::vector<uint16_t> q = ToHost(device.q);
    const std::vector<uint8_t> staging = ToHost(device.staging);
    int64_t others = 0, values = 0;
    for (int64_t row = kOrdinary; row < kRows; ++row) {
      SCOPED_TRACE(testing::Message() << shape.q_dim << " " << shape.dim << " row " << row);
      if (shape.query) {
        std::vector<float> want(static_cast<size_t>(shape.q_dim));
        RmsNormRowReference(latents.Query(row).data(), latents.q_weight.data(), shape.q_dim, kEps, true, want.data());
        for (size_t c = 0; c < want.size(); c += 32) {
          uint8_t codes[32], scale;
          numerics::QuantiseFp8(&want[c], codes, &scale);
          numerics::DequantiseFp8(codes, scale, &want[c]);
        }
        const std::vector<float> got = Floats(&q[static_cast<size_t>(row * shape.q_dim)], shape.q_dim);
        ASSERT_NO_FATAL_FAILURE(CompareBlocks(got.data(), want.data(), shape.q_dim, &others));
        values += shape.q_dim;
      }
      if (shape.dim > 0) {
        std::vector<uint8_t> packed(static_cast<size_t>(latents.row_stride));
        const std::vector<float> kv = latents.Window(row);
        WindowWriteReference({1, shape.dim, shape.rope_dim, kv.data(), latents.kv_weight.data(), kEps,
                              latents.rope.data() + row * shape.rope_dim, true, latents.row_stride, packed.data()},
                             pool);
        std::vector<float> want(static_cast<size_t>(shape.dim)), got(want.size());
        const uint8_t* ours = &staging[static_cast<size_t>(row * latents.row_stride)];
        for (int64_t c = 0; c < shape.dim; c += 32) {
          const auto block = static_cast<size_t>(shape.dim + c / 32);
          numerics::DequantiseFp8(&packed[static_cast<size_t>(c)], packed[block], &want[static_cast<size_t>(c)]);
          numerics::DequantiseFp8(ours + c, ours[block], &got[static_cast<size_t>(c)]);
        }
        ASSERT_NO_FATAL_FAILURE(CompareBlocks(got.data(), want.data(), shape.dim, &others));
        values += shape.dim;
      }
    }
    EXPECT_LE(others, values / 100) << shape.q_dim << " " << shape.dim;
  }
}

TEST_F(LatentNormsSm90Test, ANanReachesItsRowAndNoOther) {
  std::mt19937_64 random(std::random_device{}());
  const Latents latents(kShapes[0], random);
  OnDevice device(latents, kRows);
  device.Prepare(kRows);
  device.Launch(nullptr);
  SENKO_CUDA(cudaDeviceSynchronize());
  const std::vector<uint16_t> q = ToHost(device.q);
  const std::vector<uint8_t> staging = ToHost(device.staging);
  for (int64_t row = 0; row < kRows; ++row) {
    int64_t nans = 0, poisoned = 0;
    for (const float v : Floats(&q[static_cast<size_t>(row * 1280)], 1280)) nans += std::isnan(v);
    for (int64_t block = 0; block < 16; ++block) {
      poisoned += staging[static_cast<size_t>(row * latents.row_stride + 512 + block)] == 0xFF;
    }
    EXPECT_EQ(nans, row == 3 ? 1280 : row == 6 ? 32 : 0) << row;  // an infinity over infinity is a NaN in its block
    EXPECT_EQ(poisoned, row == 4 ? 16 : row == 5 ? 1 : 0) << row;
  }
}

}  // namespace
}  // namespace senko::ops
