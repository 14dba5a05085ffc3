// The compressor and its pending pairs: ratio 1 bit for bit a norm in the kernel's order, ratio 2 against the reference
// in float64, the pairs kept as a plain loop keeps them.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "ops/kv_write/kv_write.h"
#include "ops/kv_write/kv_write_sm90.h"
#include "ops/kv_write/sm90_test_rows.h"

namespace senko::ops {
namespace {

using cuda::DeviceBuffer;
using cuda::Overwrite;
using cuda::ToDevice;
using cuda::ToHost;

class CompressSm90Test : public cuda::DeviceTest {};

constexpr uint16_t kPoison = 0x7FA5;
constexpr int64_t kPendingOffset = 512;
constexpr int64_t kPendingRows = 3;
constexpr float kEps = 1e-20f;

// Poisoned slots of `count` sequences in one buffer.
struct Slots {
  int64_t bytes;
  DeviceBuffer<uint8_t> device;

  Slots(int64_t count, int64_t dim)
      : bytes(kPendingOffset + kPendingRows * 2 * dim * 4 + 256),
        device(ToDevice(std::vector<uint8_t>(static_cast<size_t>(count * bytes), 0xFF))) {}
  uint8_t* Slot(int64_t i) const { return device.data() + i * bytes; }
};

// What the reference makes of float32 c and z, [dim] each of the two tokens of every latent.
std::vector<float> Reference(const std::vector<float>& c, const std::vector<float>& z, const std::vector<float>& weight,
                             int64_t dim, int ratio) {
  const auto count = static_cast<int64_t>(c.size()) / dim / ratio;
  std::vector<LatentRef> refs;
  for (int64_t i = 0; i < count; ++i) refs.push_back({0, i, ratio * i + ratio - 1, 2 * i});
  std::vector<float> out(static_cast<size_t>(count * dim));
  CompressParams p;
  p.count = count;
  p.latents = refs.data();
  p.ratio = ratio;
  p.dim = dim;
  p.c = c.data();
  p.z = z.data();
  p.norm_weight = weight.data();
  p.rms_eps = kEps;
  p.round_bf16 = true;
  p.out = out.data();
  ThreadPool pool(1);
  CompressReference(p, pool);
  return out;
}

TEST_F(CompressSm90Test, RatioOneIsTheNormOfARow) {
  std::mt19937_64 random(std::random_device{}());
  constexpr int64_t kRows = 50, kCount = 21;
  for (const int64_t dim : {32, 64, 96, 512, 2304}) {
    std::vector<uint16_t> c = RandomCodes(kRows * dim, 3, random);
    c[static_cast<size_t>(4 * dim + 7)] = 0x7FC0;
    const std::vector<float> weight = RandomFloats(dim, 1, random);
    std::vector<LatentRef> refs;
    for (int64_t i = 0; i < kCount; ++i) refs.push_back({0, 1000 + i, static_cast<int64_t>(random() % kRows), -1});
    refs[2].row = 4;
    const DeviceBuffer<uint16_t> d_c = ToDevice(c), out(static_cast<size_t>(kCount * dim));
    const DeviceBuffer<float> d_weight = ToDevice(weight);
    const DeviceBuffer<LatentRef> d_refs = ToDevice(refs);
    const DeviceBuffer<int32_t> d_count(1);
    CompressSm90Params p;
    p.count = d_count.data();
    p.max_count = kCount;
    p.latents = d_refs.data();
    p.ratio = 1;
    p.dim = dim;
    p.c = Bf16(d_c);
    p.norm_weight = d_weight.data();
    p.rms_eps = kEps;
    p.out = Bf16(out);
    cuda::CapturedGraph graph([&](cudaStream_t stream) { CompressSm90(p, stream); });
    for (const int32_t count : {1, 21, 0, 20}) {
      Overwrite(d_count, {count});
      Overwrite(out, std::vector<uint16_t>(out.size(), kPoison));
      graph.Run();
      const std::vector<uint16_t> got = ToHost(out);
      for (int64_t i = 0; i < kCount; ++i) {
        const uint16_t* row = &got[static_cast<size_t>(i * dim)];
        if (i >= count) {
          EXPECT_EQ(std::count(row, row + dim, kPoison), dim);
          continue;
        }
        const std::vector<float> x = Floats(&c[static_cast<size_t>(refs[static_cast<size_t>(i)].row * dim)], dim);
        const std::vector<float> want = NormAsTheKernels(x.data(), weight.data(), dim, kEps);
        EXPECT_EQ(CountOthers(Floats(row, dim).data(), want.data(), dim), 0) << dim << " " << i;
        EXPECT_EQ(std::isnan(want[0]), refs[static_cast<size_t>(i)].row == 4);
        const std::vector<float> reference = Reference(x, {}, weight, dim, 1);
        for (size_t k = 0; k < want.size(); ++k) {  // neighbours at most
          if (!std::isnan(want[k])) ASSERT_LE(std::abs(want[k] - reference[k]), 0x1p-7f * std::abs(reference[k]));
        }
      }
    }
  }
}

// `kCount` latents of tokens 2i and 2i + 1, every third with its first token waiting in its sequence's slot.
struct Pairs {
  static constexpr int64_t kCount = 24;
  int64_t dim;
  std::vector<float> c, z, weight;  // [2 * kCount, dim]
  std::vector<LatentRef> refs;      // of rows that lie otherwise than the tokens
  std::vector<float> cz;            // [rows, 2 * dim]
  Slots slots;
  DeviceBuffer<SequenceKv> sequences;

  Pairs(int64_t d, float z_size, std::mt19937_64& random)
      : dim(d),
        c(RandomFloats(2 * kCount * d, 1, random)),
        z(RandomFloats(2 * kCount * d, z_size, random)),
        weight(RandomFloats(d, 1, random)),
        slots(kCount, d) {}

  // After changes of c and z; with `carried`, first tokens of every third latent go to the slots.
  void Upload(bool carried) {
    refs.clear();
    cz.clear();
    std::vector<uint8_t> bytes(slots.device.size(), 0xFF);
    std::vector<SequenceKv> host(kCount);
    const auto row_bytes = static_cast<size_t>(dim) * 4;
    const auto add = [&](int64_t token) {
      cz.insert(cz.end(), c.begin() + token * dim, c.begin() + (token + 1) * dim);
      cz.insert(cz.end(), z.begin() + token * dim, z.begin() + (token + 1) * dim);
      return static_cast<int64_t>(cz.size()) / (2 * dim) - 1;
    };
    for (int64_t i = 0; i < kCount; ++i) {
      host[static_cast<size_t>(i)].slot = slots.Slot(i);
      LatentRef ref{static_cast<int32_t>(i), 70 + i, 0, -1};
      if (carried && i % 3 == 0) {
        uint8_t* to = &bytes[static_cast<size_t>(i * slots.bytes + kPendingOffset)] +
                      static_cast<size_t>(ref.entry % kPendingRows) * 2 * row_bytes;
        std::memcpy(to, &c[static_cast<size_t>(2 * i * dim)], row_bytes);
        std::memcpy(to + row_bytes, &z[static_cast<size_t>(2 * i * dim)], row_bytes);
      } else {
        ref.row_prev = add(2 * i);
      }
      ref.row = add(2 * i + 1);
      refs.push_back(ref);
    }
    Overwrite(slots.device, bytes);
    sequences = ToDevice(host);
  }

  std::vector<uint16_t> Run(int32_t count, int64_t max_count) const {
    const DeviceBuffer<float> d_cz = ToDevice(cz), d_weight = ToDevice(weight);
    const DeviceBuffer<LatentRef> d_refs = ToDevice(refs);
    const DeviceBuffer<int32_t> d_count = ToDevice(std::vector<int32_t>{count});
    const DeviceBuffer<uint16_t> out = ToDevice(std::vector<uint16_t>(static_cast<size_t>(max_count * dim), kPoison));
    CompressSm90Params p;
    p.count = d_count.data();
    p.max_count = max_count;
    p.latents = d_refs.data();
    p.ratio = 2;
    p.dim = dim;
    p.cz = d_cz.data();
    p.sequences = sequences.data();
    p.pending_offset = kPendingOffset;
    p.pending_rows = kPendingRows;
    p.norm_weight = d_weight.data();
    p.rms_eps = kEps;
    p.out = Bf16(out);
    CompressSm90(p, nullptr);
    SENKO_CUDA(cudaDeviceSynchronize());
    return ToHost(out);
  }
};

TEST_F(CompressSm90Test, PairsFollowTheReferenceWhereverTheFirstTokenLies) {
  std::mt19937_64 random(std::random_device{}());
  for (const int64_t dim : {32, 64, 512, 2304}) {
    for (const float z_size : {0.1f, 2.0f, 60.0f, 1e30f}) {
      SCOPED_TRACE(testing::Message() << dim << " gates of " << z_size);
      Pairs pairs(dim, z_size, random);
      pairs.Upload(false);
      const std::vector<uint16_t> together = pairs.Run(Pairs::kCount, Pairs::kCount);
      const std::vector<float> got = Floats(together.data(), Pairs::kCount * dim);
      const std::vector<float> want = Reference(pairs.c, pairs.z, pairs.weight, dim, 2);
      int64_t others = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        // A step of the pooled sum's rounding and one of the last, where float32 falls on the other side: the sum of
        // two products that cancel is off by 2^-22 of them, which is less than a step of any but a tiny sum.
        ASSERT_LE(std::abs(got[i] - want[i]), 0x1.04p-6f * std::abs(want[i]) + 1e-5f) << i;
        others += got[i] != want[i];
      }
      EXPECT_LE(others, static_cast<int64_t>(got.size()) / 100);

      pairs.Upload(true);
      EXPECT_EQ(pairs.Run(Pairs::kCount, Pairs::kCount), together);
      for (const int32_t count : {0, 1, 7}) {
        std::vector<uint16_t> some = together;
        std::fill(some.begin() + count * dim, some.end(), kPoison);
        EXPECT_EQ(pairs.Run(count, Pairs::kCount), some);
      }
    }
  }
}

TEST_F(CompressSm90Test, ANanStaysInItsLatent) {
  std::mt19937_64 random(std::random_device{}());
  for (const bool in_gate : {false, true}) {
    for (const int64_t token : {12, 13}) {  // latent 6, whose first token may wait in a slot
      Pairs pairs(64, 2, random);
      (in_gate ? pairs.z : pairs.c)[static_cast<size_t>(token * 64 + 9)] = std::nanf("");
      for (const bool carried : {false, true}) {
        pairs.Upload(carried);
        const std::vector<float> got = Floats(pairs.Run(Pairs::kCount, Pairs::kCount).data(), Pairs::kCount * 64);
        for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(std::isnan(got[i]), i / 64 == 6) << i;
      }
    }
  }
}

TEST_F(CompressSm90Test, ThePendingPairsAreThoseOfAPlainLoop) {
  std::mt19937_64 random(std::random_device{}());
  constexpr int64_t kSequences = 6, kMost = 9;
  for (const int64_t dim : {32, 64, 512, 1024}) {
    const Slots slots(kSequences, dim);
    std::vector<uint8_t> want(slots.device.size(), 0xFF);
    const DeviceBuffer<SequenceKv> sequences(kMost);
    const DeviceBuffer<int32_t> num_sequences(1), row_counts(kMost);
    constexpr int64_t kMostRows = 200;
    const DeviceBuffer<int64_t> positions(kMostRows);
    const DeviceBuffer<float> cz(static_cast<size_t>(kMostRows * 2 * dim));
    PendingStoreSm90Params p;
    p.num_sequences = num_sequences.data();
    p.max_sequences = kMost;
    p.sequences = sequences.data();
    p.row_counts = row_counts.data();
    p.positions = positions.data();
    p.dim = dim;
    p.cz = cz.data();
    p.pending_offset = kPendingOffset;
    p.pending_rows = kPendingRows;
    cuda::CapturedGraph graph([&](cudaStream_t stream) { PendingStoreSm90(p, stream); });
    for (int step = 0; step < 30; ++step) {
      const auto live = static_cast<int32_t>(random() % (kSequences + 1));
      const std::vector<float> values = RandomFloats(kMostRows * 2 * dim, 1, random);
      std::vector<SequenceKv> host(kMost);  // those that are not live have no slot
      std::vector<int32_t> counts(kMost, 3);
      std::vector<int64_t> at(kMostRows, 0);
      int64_t begin = 2;
      for (int64_t s = 0; s < live; ++s) {
        SequenceKv& sequence = host[static_cast<size_t>(s)];
        const int64_t count = static_cast<int64_t>(random() % (step % 2 == 0 ? 30 : 4));
        const int64_t first = static_cast<int64_t>(random() % 1000000);
        sequence.slot = slots.Slot(s);
        sequence.staging_begin = begin;
        counts[static_cast<size_t>(s)] = static_cast<int32_t>(count);
        for (int64_t k = 0; k < count; ++k) {
          const int64_t position = first + k;
          at[static_cast<size_t>(begin + k)] = position;
          if (position % 2 != 0 || k < count - 2 * kPendingRows) continue;
          std::memcpy(
              &want[static_cast<size_t>(s * slots.bytes + kPendingOffset + position / 2 % kPendingRows * 2 * dim * 4)],
              &values[static_cast<size_t>((begin + k) * 2 * dim)], static_cast<size_t>(2 * dim * 4));
        }
        begin += count;
      }
      Overwrite(num_sequences, {live});
      Overwrite(row_counts, counts);
      Overwrite(sequences, host);
      Overwrite(positions, at);
      Overwrite(cz, values);
      graph.Run();
      ASSERT_TRUE(ToHost(slots.device) == want) << dim << " step " << step;
    }
  }
}

}  // namespace
}  // namespace senko::ops
