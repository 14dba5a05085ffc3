// Attention of sm_90a against the reference on the same packed bytes, and against itself: alone, among others, with its
// keys split or not.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "cuda/test_device.h"
#include "numerics/bf16.h"
#include "ops/attention/attention_sm90.h"
#include "ops/attention/attention_test_world.h"

namespace senko::ops {
namespace {

using cuda::DeviceBuffer;
using cuda::ToDevice;
using cuda::ToHost;
using testing::Rows;
using testing::RowSpec;
using testing::Shape;
using testing::World;
using testing::WorldSpec;

class AttentionSm90Test : public cuda::DeviceTest {};

// A world's memory on the device.
class DeviceWorld {
 public:
  explicit DeviceWorld(World& world) : host_(world.Params()) {
    staging_ = ToDevice(world.staging());
    slab_ = ToDevice(world.slab());
    std::vector<SequenceKv> kv = world.sequences_kv();
    for (size_t i = 0; i < kv.size(); ++i) {
      slots_.push_back(ToDevice(world.slots()[i]));
      pages_.push_back(ToDevice(world.page_lists()[i]));
      kv[i].slot = slots_.back().data();
      kv[i].pages = pages_.back().data();
    }
    kv_ = ToDevice(kv);
    const RowBatch& r = host_.rows;
    const auto n = static_cast<size_t>(r.num_rows);
    positions_ = ToDevice(std::vector<int64_t>(r.positions, r.positions + n));
    sequences_ = ToDevice(std::vector<int32_t>(r.sequences, r.sequences + n));
    window_begin_ = ToDevice(std::vector<int64_t>(r.window_begin, r.window_begin + n));
    rope_ = ToDevice(world.rope());
    sink_ = ToDevice(world.sink());
    std::vector<uint16_t> q;
    for (const float v : world.q()) q.push_back(numerics::FloatToBf16(v));
    q_ = ToDevice(q);
    if (host_.selected != nullptr) {
      const auto selected = n * static_cast<size_t>(host_.selected_stride);
      selected_ = ToDevice(std::vector<int32_t>(host_.selected, host_.selected + selected));
      selected_count_ = ToDevice(std::vector<int32_t>(host_.selected_count, host_.selected_count + n));
    }
  }

  // Rows [first, first + count) of max_rows.
  std::vector<float> Run(int64_t first, int64_t count, int64_t max_rows, int64_t max_window,
                         void (*attention)(const AttentionSm90Params&, cudaStream_t)) {
    const AttentionParams& h = host_;
    const DeviceBuffer<int32_t> num_rows = ToDevice(std::vector<int32_t>{static_cast<int32_t>(count)});
    const int64_t row = h.heads * h.dim;
    const DeviceBuffer<uint16_t> out = ToDevice(std::vector<uint16_t>(static_cast<size_t>(max_rows * row), 0x7FA5));
    const DeviceBuffer<float> scratch =
        ToDevice(std::vector<float>(AttentionScratchFloats(max_window, h.selected_stride), NAN));
    AttentionSm90Params p;
    p.num_rows = num_rows.data();
    p.max_rows = max_rows;
    p.rows = {0, positions_.data() + first, sequences_.data() + first, window_begin_.data() + first, kv_.data(), 0};
    p.heads = h.heads;
    p.dim = h.dim;
    p.rope_dim = h.rope_dim;
    p.max_window = max_window;
    p.q = reinterpret_cast<const __nv_bfloat16*>(q_.data()) + first * row;
    p.rope = rope_.data() + first * h.rope_dim;
    p.sink = sink_.data();
    p.scale = h.scale;
    p.window = h.window;
    p.window.staging = staging_.data();
    if (h.selected != nullptr) {
      p.selected = selected_.data() + first * h.selected_stride;
      p.selected_count = selected_count_.data() + first;
      p.selected_stride = h.selected_stride;
      p.entries = h.entries;
      p.entries.slab = slab_.data();
    }
    p.scratch = scratch.data();
    p.out = reinterpret_cast<__nv_bfloat16*>(out.data());
    attention(p, nullptr);
    SENKO_CUDA(cudaDeviceSynchronize());
    std::vector<float> result;
    for (const uint16_t code : ToHost(out)) result.push_back(numerics::Bf16ToFloat(code));
    return result;
  }

 private:
  AttentionParams host_;
  DeviceBuffer<uint8_t> staging_, slab_;
  std::vector<DeviceBuffer<uint8_t>> slots_;
  std::vector<DeviceBuffer<int32_t>> pages_;
  DeviceBuffer<SequenceKv> kv_;
  DeviceBuffer<int64_t> positions_, window_begin_;
  DeviceBuffer<int32_t> sequences_, selected_, selected_count_;
  DeviceBuffer<float> rope_, sink_;
  DeviceBuffer<uint16_t> q_;
};

TEST_F(AttentionSm90Test, AgreesWithTheReferenceAndWithItself) {
  uint32_t seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  for (const Shape& shape : {Shape{64, 512, 64, 128, 512}, Shape{64, 512, 64, 128, 0}, Shape{20, 512, 64, 128, 100},
                             Shape{64, 512, 64, 300, 40}, Shape{8, 64, 16, 16, 8}, Shape{4, 96, 32, 40, 100}}) {
    for (const uint8_t poison : {0x7F, 0xFF}) {
      WorldSpec spec;
      spec.shape = shape;
      spec.seed = ++seed;
      spec.round_bf16 = true;
      spec.poison = poison;
      const int64_t far = 2 * shape.window + 700;
      for (const RowSpec& row : Rows(shape, 0, 0, 3, seed)) spec.rows.push_back(row);
      for (const RowSpec& row : Rows(shape, 1, shape.window + 1, 7, seed)) spec.rows.push_back(row);
      for (const RowSpec& row : Rows(shape, 2, far, 8, seed)) spec.rows.push_back(row);
      spec.first_new = {0, shape.window + 3, far};
      World world(spec);
      const std::vector<float> expected = world.Run(AttentionReference);
      DeviceWorld device(world);
      const int64_t n = world.num_rows(), each = shape.heads * shape.dim;
      const std::vector<float> all = device.Run(0, n, n + 2, shape.window, AttentionSm90);
      // A weight is rounded against its block's maximum instead of the last one, which moves it by 2^-8 of itself at
      // most; the weighted mean of values below 5 moves by 2^-8 of it, and rounds twice.
      double worst = 0;
      int64_t other = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_TRUE(std::isfinite(expected[i]));
        const double error = std::abs(double{all[i]} - expected[i]) / (0.25 + std::abs(double{expected[i]}));
        worst = error <= worst ? worst : error;
        other += all[i] != expected[i];
      }
      EXPECT_LE(worst, 0x1p-6) << shape.heads << " heads of " << shape.dim << ", seed " << spec.seed;
      std::printf("%d heads of %d, window %d, %d entries: error %.2g, %.1f%% of the outputs differ\n",
                  static_cast<int>(shape.heads), static_cast<int>(shape.dim), static_cast<int>(shape.window),
                  static_cast<int>(shape.topk), worst,
                  100.0 * static_cast<double>(other) / static_cast<double>(expected.size()));
      for (size_t i = expected.size(); i < all.size(); ++i) ASSERT_TRUE(std::isnan(all[i]));
      for (const int64_t first : {int64_t{0}, int64_t{2}, n / 2, n - 1}) {
        for (const int64_t count : {int64_t{1}, int64_t{4}}) {
          if (first + count > n) continue;
          const std::vector<float> some = device.Run(first, count, count + 1, shape.window, AttentionSm90);
          EXPECT_EQ(std::memcmp(some.data(), all.data() + first * each, static_cast<size_t>(count * each) * 4), 0)
              << first << " " << count << ", " << shape.heads << " heads of " << shape.dim;
          if (shape.dim != 512) continue;
          const std::vector<float> whole = device.Run(first, count, count, shape.window, AttentionWholeSm90);
          EXPECT_EQ(std::memcmp(whole.data(), all.data() + first * each, whole.size() * 4), 0) << first << " " << count;
        }
      }
    }
  }
}

}  // namespace
}  // namespace senko::ops
