// Entries and index keys in the pages: entries are the reference's bits, keys those of the scalar quantiser behind a
// norm in the kernel's order.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "numerics/packed_rows.h"
#include "numerics/quantise.h"
#include "ops/kv_write/kv_write.h"
#include "ops/kv_write/kv_write_sm90.h"
#include "ops/kv_write/sm90_test_rows.h"
#include "ops/norm/rope_reference.h"

namespace senko::ops {
namespace {

using cuda::DeviceBuffer;
using cuda::Overwrite;
using cuda::ToDevice;
using cuda::ToHost;
using numerics::RoundUp;

class EntryWriteSm90Test : public cuda::DeviceTest {};

constexpr uint8_t kPoison = 0xA5;
constexpr float kEps = 1e-20f;
constexpr int64_t kLatents = 45;
constexpr int64_t kPagesEach = 7;

struct Shape {
  int64_t dim, index_dim, rope_dim, entries_per_page;
};
constexpr Shape kShapes[] = {{512, 128, 64, 64}, {64, 32, 16, 32}, {32, 32, 8, 128},
                             {64, 32, 8, 64},    {96, 64, 10, 32}, {512, 512, 0, 64}};

// Latents of two sequences, no two for one entry, and the pages as they shall become.
struct Entries {
  Shape shape;
  std::vector<uint16_t> latent, k;
  std::vector<float> k_norm, rope;
  std::vector<LatentRef> refs;
  std::vector<int32_t> pages[2];
  EntryView view;

  Entries(const Shape& s, std::mt19937_64& random)
      : shape(s),
        latent(RandomCodes(kLatents * s.dim, 1, random)),
        k(RandomCodes(kLatents * s.index_dim, 1, random)),
        k_norm(RandomFloats(s.index_dim, 1, random)),
        rope(RandomRope(kLatents, s.rope_dim, random)) {
    // Entries' scales run from their floor to their clamp.
    for (int64_t i = 0; i < kLatents; ++i) {
      const float size = i == 0 ? 0 : std::ldexp(1.0f, static_cast<int>(random() % 30) - 14);
      for (int64_t c = 0; c < s.dim; ++c) Scale(&latent[static_cast<size_t>(i * s.dim + c)], size);
      for (int64_t c = 0; c < s.index_dim; ++c) Scale(&k[static_cast<size_t>(i * s.index_dim + c)], size);
    }
    latent[static_cast<size_t>(3 * s.dim + 5)] = 0x7FC1;
    k[static_cast<size_t>(4 * s.index_dim + 6)] = 0xFFC1;
    latent[static_cast<size_t>(5 * s.dim + s.dim - 1)] = 0xFF80;

    std::vector<int32_t> all(2 * kPagesEach);
    std::iota(all.begin(), all.end(), 1);  // page 0 is nobody's
    std::shuffle(all.begin(), all.end(), random);
    pages[0].assign(all.begin(), all.begin() + kPagesEach);
    pages[1].assign(all.begin() + kPagesEach, all.end());
    std::vector<int64_t> entries(static_cast<size_t>(kPagesEach * s.entries_per_page));
    std::iota(entries.begin(), entries.end(), 0);
    std::shuffle(entries.begin(), entries.end(), random);
    for (int64_t i = 0; i < kLatents; ++i) {
      refs.push_back({static_cast<int32_t>(random() % 2), entries[static_cast<size_t>(i)], 7 * i, -1});
    }

    view.entries_per_page = s.entries_per_page;
    view.entry_offset = 256;
    view.entry_stride = numerics::EntryStride(s.dim);
    view.key_value_bytes = numerics::IndexKeyValueBytes(s.index_dim);
    view.key_scale_bytes = numerics::IndexKeyScaleBytes(s.index_dim);
    view.key_value_offset = RoundUp(256 + s.entries_per_page * view.entry_stride, 256);
    view.key_scale_offset = RoundUp(view.key_value_offset + s.entries_per_page * view.key_value_bytes, 256);
    view.page_bytes = RoundUp(view.key_scale_offset + s.entries_per_page * view.key_scale_bytes, 256);
  }

  size_t SlabBytes() const { return static_cast<size_t>((2 * kPagesEach + 1) * view.page_bytes); }

  // The slab after the first `count` latents; keys by the reference's norm or the kernel's.
  std::vector<uint8_t> Expected(int64_t count, bool reference_norm) const {
    std::vector<uint8_t> slab(SlabBytes(), kPoison);
    EntryView to = view;
    to.slab = slab.data();
    const SequenceKv sequences[2] = {{pages[0].data()}, {pages[1].data()}};
    const std::vector<float> x = Floats(latent.data(), kLatents * shape.dim);
    const std::vector<float> keys = Floats(k.data(), kLatents * shape.index_dim);
    ThreadPool pool(1);
    EntryWriteReference({count, refs.data(), shape.dim, shape.rope_dim, x.data(), rope.data(), true, sequences, to},
                        pool);
    if (reference_norm) {
      KeyWriteReference({count, refs.data(), shape.index_dim, shape.rope_dim, keys.data(), k_norm.data(), kEps,
                         rope.data(), true, sequences, to},
                        pool);
      return slab;
    }
    for (int64_t i = 0; i < count; ++i) {
      const LatentRef& ref = refs[static_cast<size_t>(i)];
      std::vector<float> y = NormAsTheKernels(keys.data() + i * shape.index_dim, k_norm.data(), shape.index_dim, kEps);
      RopeRotateReference(y.data() + shape.index_dim - shape.rope_dim, rope.data() + i * shape.rope_dim,
                          shape.rope_dim / 2, false, true);
      uint8_t* values = to.KeyValues(sequences[ref.sequence], ref.entry);
      uint8_t* scales = to.KeyScales(sequences[ref.sequence], ref.entry);
      for (int64_t c = 0; c < shape.index_dim; c += 32) {
        numerics::QuantiseFp4(&y[static_cast<size_t>(c)], values + c / 2, scales + c / 32);
      }
    }
    return slab;
  }

 private:
  static void Scale(uint16_t* code, float size) { *code = numerics::FloatToBf16(size * numerics::Bf16ToFloat(*code)); }
};

struct OnDevice {
  const Entries& host;
  int64_t max_count;
  DeviceBuffer<uint16_t> latent, k;
  DeviceBuffer<float> k_norm, rope;
  DeviceBuffer<LatentRef> refs;
  DeviceBuffer<int32_t> pages[2];
  DeviceBuffer<SequenceKv> sequences;
  DeviceBuffer<uint8_t> slab;
  DeviceBuffer<int32_t> count;

  OnDevice(const Entries& e, int64_t max)
      : host(e),
        max_count(max),
        latent(ToDevice(Head(e.latent, e.shape.dim * max))),
        k(ToDevice(Head(e.k, e.shape.index_dim * max))),
        k_norm(ToDevice(e.k_norm)),
        rope(ToDevice(Head(e.rope, e.shape.rope_dim * max))),
        refs(ToDevice(Head(e.refs, max))),
        pages{ToDevice(e.pages[0]), ToDevice(e.pages[1])},
        sequences(ToDevice(std::vector<SequenceKv>{{pages[0].data()}, {pages[1].data()}})),
        slab(e.SlabBytes()),
        count(1) {}

  template <typename T>
  static std::vector<T> Head(const std::vector<T>& v, int64_t count) {
    return {v.begin(), v.begin() + count};
  }

  void Prepare(int32_t latents) {
    Overwrite(count, {latents});
    Overwrite(slab, std::vector<uint8_t>(slab.size(), kPoison));
  }
  void Launch(cudaStream_t stream) const {
    EntryWriteSm90Params p;
    p.count = count.data();
    p.max_count = max_count;
    p.latents = refs.data();
    p.dim = host.shape.dim;
    p.index_dim = host.shape.index_dim;
    p.rope_dim = host.shape.rope_dim;
    p.latent = Bf16(latent);
    p.k = Bf16(k);
    p.k_norm = k_norm.data();
    p.rms_eps = kEps;
    p.rope = rope.data();
    p.sequences = sequences.data();
    p.entries = host.view;
    p.entries.slab = slab.data();
    EntryWriteSm90(p, stream);
  }
};

TEST_F(EntryWriteSm90Test, EveryByteOfThePagesIsTheScalarRulesForAnyCount) {
  std::mt19937_64 random(std::random_device{}());
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.dim << " " << shape.index_dim << " " << shape.rope_dim);
    const Entries entries(shape, random);
    for (const int32_t count : {1, 45}) {  // buffers that end with the latents
      OnDevice device(entries, count);
      device.Prepare(count);
      device.Launch(nullptr);
      SENKO_CUDA(cudaDeviceSynchronize());
      EXPECT_TRUE(ToHost(device.slab) == entries.Expected(count, false)) << count;
    }
    OnDevice device(entries, kLatents);
    cuda::CapturedGraph graph([&](cudaStream_t stream) { device.Launch(stream); });
    for (const int32_t count : {31, 1, 0, 45, 45, 6}) {
      device.Prepare(count);
      graph.Run();
      EXPECT_TRUE(ToHost(device.slab) == entries.Expected(count, false)) << count;
    }
  }
}

// Against the reference throughout: its norm is in float64, so that a key's value may round to a neighbour.
TEST_F(EntryWriteSm90Test, BytesAreTheReferencesButForBoundariesOfKeys) {
  std::mt19937_64 random(std::random_device{}());
  int64_t others = 0, bytes = 0;
  for (const Shape& shape : kShapes) {
    const Entries entries(shape, random);
    OnDevice device(entries, kLatents);
    device.Prepare(kLatents);
    device.Launch(nullptr);
    SENKO_CUDA(cudaDeviceSynchronize());
    const std::vector<uint8_t> got = ToHost(device.slab), want = entries.Expected(kLatents, true);
    for (size_t i = 0; i < got.size(); ++i) {
      if (got[i] == want[i]) continue;
      ++others;
      const auto offset = static_cast<int64_t>(i) % entries.view.page_bytes;
      ASSERT_GE(offset, entries.view.key_value_offset) << "an entry";
      if (offset >= entries.view.key_scale_offset) {  // a block's maximum on a power of two
        ASSERT_LE(std::abs(got[i] - want[i]), 1);
      }
    }
    bytes += kLatents * shape.index_dim / 2;
  }
  EXPECT_LE(others, bytes / 100);
}

TEST_F(EntryWriteSm90Test, ANanReachesItsBlocksAndNoOther) {
  std::mt19937_64 random(std::random_device{}());
  const Entries entries(kShapes[0], random);
  OnDevice device(entries, kLatents);
  device.Prepare(kLatents);
  device.Launch(nullptr);
  SENKO_CUDA(cudaDeviceSynchronize());
  std::vector<uint8_t> slab = ToHost(device.slab);
  EntryView view = entries.view;
  view.slab = slab.data();
  for (int64_t i = 0; i < kLatents; ++i) {
    const LatentRef& ref = entries.refs[static_cast<size_t>(i)];
    const SequenceKv sequence = {entries.pages[ref.sequence].data()};
    const uint8_t* scales = view.Entry(sequence, ref.entry) + 256;
    const uint8_t* key_scales = view.KeyScales(sequence, ref.entry);
    EXPECT_EQ(std::count(scales, scales + 32, numerics::kE4m3Nan), i == 3 || i == 5 ? 1 : 0) << i;
    EXPECT_EQ(std::count(key_scales, key_scales + 4, 0xFF), i == 4 ? 4 : 0) << i;
  }
}

}  // namespace
}  // namespace senko::ops
