// What writes KV from float32 rows, without rounding points, against the references: the same kernels as for bf16 rows,
// whose tests have their edges.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "numerics/packed_rows.h"
#include "ops/kv_write/kv_write.h"
#include "ops/kv_write/kv_write_sm90.h"
#include "ops/kv_write/sm90_test_rows.h"
#include "ops/norm/rms_row.h"

namespace senko::ops {
namespace {

using cuda::DeviceBuffer;
using cuda::ToDevice;
using cuda::ToHost;

class KvFloatSm90Test : public cuda::DeviceTest {};

constexpr float kEps = 1e-20f;
constexpr int64_t kRows = 31, kMost = 33;

DeviceBuffer<float> Nans(int64_t count) { return ToDevice(std::vector<float>(static_cast<size_t>(count), NAN)); }

// A sum of squares in float32 and a few roundings.
void ExpectNear(const std::vector<float>& got, const std::vector<float>& want, float bound) {
  for (size_t i = 0; i < got.size(); ++i) {
    if (i >= want.size() || std::isnan(want[i])) {
      ASSERT_TRUE(std::isnan(got[i])) << i;
    } else {
      ASSERT_LE(std::abs(got[i] - want[i]), bound * std::abs(want[i]) + 1e-6f) << i;
    }
  }
}
// Packed bytes: a value within float32's error of a step may fall on its other side.
void ExpectNearlyAll(const std::vector<uint8_t>& got, const std::vector<uint8_t>& want) {
  ASSERT_EQ(got.size(), want.size());
  size_t others = 0;
  for (size_t i = 0; i < got.size(); ++i) others += got[i] != want[i];
  EXPECT_LE(others, got.size() / 1000);
}

TEST_F(KvFloatSm90Test, LatentNorms) {
  std::mt19937_64 random(std::random_device{}());
  ThreadPool pool(2);
  struct Shape {
    int64_t q_dim, dim, rope_dim;
  };
  for (const Shape& s : {Shape{1280, 512, 64}, Shape{64, 96, 32}, Shape{0, 64, 16}, Shape{128, 0, 0}}) {
    const int64_t width = s.q_dim + s.dim, stride = numerics::WindowRowStride(s.dim);
    std::vector<float> latents = RandomFloats(kMost * width, 2, random);
    if (s.q_dim > 0) latents[static_cast<size_t>(7 * width + 5)] = NAN;
    const std::vector<float> q_weight = RandomFloats(s.q_dim, 1, random), kv_weight = RandomFloats(s.dim, 1, random),
                             rope = RandomRope(kMost, s.rope_dim, random);
    const DeviceBuffer<float> d_latents = ToDevice(latents), d_q = ToDevice(q_weight), d_kv = ToDevice(kv_weight),
                              d_rope = ToDevice(rope), q = Nans(kMost * s.q_dim);
    const DeviceBuffer<uint8_t> staging = ToDevice(std::vector<uint8_t>(static_cast<size_t>(kMost * stride), 0xA5));
    const DeviceBuffer<int32_t> count = ToDevice(std::vector<int32_t>{static_cast<int32_t>(kRows)});
    BasicLatentNormsSm90Params<float> p;
    p.rows = count.data();
    p.max_rows = kMost;
    p.latents = d_latents.data();
    p.q_dim = s.q_dim;
    p.q_weight = d_q.data();
    p.q = s.q_dim > 0 ? q.data() : nullptr;
    p.dim = s.dim;
    p.rope_dim = s.rope_dim;
    p.kv_weight = d_kv.data();
    p.rms_eps = kEps;
    p.rope = d_rope.data();
    p.row_stride = stride;
    p.staging = staging.data();
    LatentNormsSm90(p, nullptr);
    SENKO_CUDA(cudaDeviceSynchronize());
    std::vector<float> want_q(static_cast<size_t>(kRows * s.q_dim));
    std::vector<uint8_t> want(static_cast<size_t>(kMost * stride), 0xA5);
    for (int64_t r = 0; r < kRows; ++r) {
      const float* row = latents.data() + r * width;
      RmsNormRowReference(row, q_weight.data(), s.q_dim, kEps, false, want_q.data() + r * s.q_dim);
      if (s.dim == 0) continue;
      WindowWriteReference({1, s.dim, s.rope_dim, row + s.q_dim, kv_weight.data(), kEps, rope.data() + r * s.rope_dim,
                            false, stride, want.data() + r * stride},
                           pool);
    }
    ExpectNear(ToHost(q), want_q, 0x1p-20f);
    ExpectNearlyAll(ToHost(staging), want);
  }
}

TEST_F(KvFloatSm90Test, Compress) {
  std::mt19937_64 random(std::random_device{}());
  ThreadPool pool(2);
  for (const int ratio : {1, 2}) {
    for (const int64_t dim : {64, 96, 512}) {
      const std::vector<float> c = RandomFloats(kMost * dim * 2, 1, random),
                               z = RandomFloats(kMost * dim * 2, 2, random), weight = RandomFloats(dim, 1, random);
      std::vector<float> cz;
      std::vector<LatentRef> refs;
      for (int64_t i = 0; i < kMost; ++i) refs.push_back({0, i, ratio * i + ratio - 1, ratio == 2 ? 2 * i : -1});
      for (int64_t i = 0; i < 2 * kMost; ++i) {
        cz.insert(cz.end(), c.begin() + i * dim, c.begin() + (i + 1) * dim);
        cz.insert(cz.end(), z.begin() + i * dim, z.begin() + (i + 1) * dim);
      }
      const DeviceBuffer<float> d_c = ToDevice(c), d_cz = ToDevice(cz), d_weight = ToDevice(weight),
                                out = Nans(kMost * dim);
      const DeviceBuffer<LatentRef> d_refs = ToDevice(refs);
      const DeviceBuffer<int32_t> count = ToDevice(std::vector<int32_t>{static_cast<int32_t>(kRows)});
      BasicCompressSm90Params<float> p;
      p.count = count.data();
      p.max_count = kMost;
      p.latents = d_refs.data();
      p.ratio = ratio;
      p.dim = dim;
      p.c = d_c.data();
      p.cz = d_cz.data();
      p.norm_weight = d_weight.data();
      p.rms_eps = kEps;
      p.out = out.data();
      CompressSm90(p, nullptr);
      SENKO_CUDA(cudaDeviceSynchronize());
      std::vector<float> want(static_cast<size_t>(kRows * dim));
      CompressParams r;
      r.count = kRows;
      r.latents = refs.data();
      r.ratio = ratio;
      r.dim = dim;
      r.c = c.data();
      r.z = z.data();
      r.norm_weight = weight.data();
      r.rms_eps = kEps;
      r.out = want.data();
      CompressReference(r, pool);
      ExpectNear(ToHost(out), want, 0x1p-18f);
    }
  }
}

TEST_F(KvFloatSm90Test, EntriesAndKeys) {
  std::mt19937_64 random(std::random_device{}());
  ThreadPool pool(2);
  for (const int64_t dim : {512, 64}) {
    const int64_t index_dim = dim / 4 < 32 ? 32 : dim / 4, rope_dim = 16, in_page = 32;
    const std::vector<float> latent = RandomFloats(kMost * dim, 1, random),
                             k = RandomFloats(kMost * index_dim, 3, random),
                             k_norm = RandomFloats(index_dim, 1, random), rope = RandomRope(kMost, rope_dim, random);
    std::vector<LatentRef> refs;
    for (int64_t i = 0; i < kMost; ++i) refs.push_back({0, (i * 7) % 64, i, -1});
    EntryView view;
    view.entries_per_page = in_page;
    view.entry_offset = 256;
    view.entry_stride = numerics::EntryStride(dim);
    view.key_value_bytes = numerics::IndexKeyValueBytes(index_dim);
    view.key_scale_bytes = numerics::IndexKeyScaleBytes(index_dim);
    view.key_value_offset = numerics::RoundUp(256 + in_page * view.entry_stride, 256);
    view.key_scale_offset = numerics::RoundUp(view.key_value_offset + in_page * view.key_value_bytes, 256);
    view.page_bytes = numerics::RoundUp(view.key_scale_offset + in_page * view.key_scale_bytes, 256);
    std::vector<uint8_t> want(static_cast<size_t>(3 * view.page_bytes), 0xA5);
    const std::vector<int32_t> pages = {2, 1};
    const DeviceBuffer<uint8_t> slab = ToDevice(want);
    const DeviceBuffer<int32_t> d_pages = ToDevice(pages);
    const DeviceBuffer<SequenceKv> sequences = ToDevice(std::vector<SequenceKv>{{d_pages.data()}});
    const DeviceBuffer<LatentRef> d_refs = ToDevice(refs);
    const DeviceBuffer<float> d_latent = ToDevice(latent), d_k = ToDevice(k), d_norm = ToDevice(k_norm),
                              d_rope = ToDevice(rope);
    const DeviceBuffer<int32_t> count = ToDevice(std::vector<int32_t>{static_cast<int32_t>(kRows)});
    BasicEntryWriteSm90Params<float> p;
    p.count = count.data();
    p.max_count = kMost;
    p.latents = d_refs.data();
    p.dim = dim;
    p.index_dim = index_dim;
    p.rope_dim = rope_dim;
    p.latent = d_latent.data();
    p.k = d_k.data();
    p.k_norm = d_norm.data();
    p.rms_eps = kEps;
    p.rope = d_rope.data();
    p.sequences = sequences.data();
    p.entries = view;
    p.entries.slab = slab.data();
    EntryWriteSm90(p, nullptr);
    SENKO_CUDA(cudaDeviceSynchronize());
    const SequenceKv sequence = {pages.data()};
    view.slab = want.data();
    EntryWriteReference({kRows, refs.data(), dim, rope_dim, latent.data(), rope.data(), false, &sequence, view}, pool);
    KeyWriteReference(
        {kRows, refs.data(), index_dim, rope_dim, k.data(), k_norm.data(), kEps, rope.data(), false, &sequence, view},
        pool);
    ExpectNearlyAll(ToHost(slab), want);
  }
}

}  // namespace
}  // namespace senko::ops
