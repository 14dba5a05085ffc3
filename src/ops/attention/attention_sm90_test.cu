// Attention of sm_90a against the reference on the same packed bytes, and against itself: alone, among others, with its
// keys split or not.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "cuda/test_device.h"
#include "numerics/bf16.h"
#include "numerics/e4m3.h"
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

constexpr uint16_t kPoison = 0x7FA5;  // a NaN

class AttentionSm90Test : public cuda::DeviceTest {};

template <typename T>
std::vector<T> Repeated(const std::vector<T>& once, int64_t times) {
  std::vector<T> all;
  for (int64_t i = 0; i < times; ++i) all.insert(all.end(), once.begin(), once.end());
  return all;
}

// A world's memory on the device, its rows so many times.
class DeviceWorld {
 public:
  explicit DeviceWorld(World& world, int64_t times = 1) : host_(world.Params()) {
    staging_ = ToDevice(world.staging());
    slab_ = ToDevice(world.slab());
    std::vector<SequenceKv> kv = world.sequences_kv();
    sequences_kv_ = kv;
    for (size_t i = 0; i < kv.size(); ++i) {
      slots_.push_back(ToDevice(world.slots()[i]));
      pages_.push_back(ToDevice(world.page_lists()[i]));
      kv[i].slot = slots_.back().data();
      kv[i].pages = pages_.back().data();
    }
    kv_ = ToDevice(kv);
    const RowBatch& r = host_.rows;
    const auto n = static_cast<size_t>(r.num_rows);
    positions_ = ToDevice(Repeated(std::vector<int64_t>(r.positions, r.positions + n), times));
    sequences_ = ToDevice(Repeated(std::vector<int32_t>(r.sequences, r.sequences + n), times));
    window_begin_ = ToDevice(Repeated(std::vector<int64_t>(r.window_begin, r.window_begin + n), times));
    rope_ = ToDevice(Repeated(world.rope(), times));
    sink_ = ToDevice(world.sink());
    std::vector<uint16_t> q;
    for (const float v : world.q()) q.push_back(numerics::FloatToBf16(v));
    q_ = ToDevice(Repeated(q, times));
    if (host_.selected != nullptr) {
      const auto selected = n * static_cast<size_t>(host_.selected_stride);
      selected_ = ToDevice(Repeated(std::vector<int32_t>(host_.selected, host_.selected + selected), times));
      selected_count_ = ToDevice(Repeated(std::vector<int32_t>(host_.selected_count, host_.selected_count + n), times));
    }
  }

  // A step's own memory; outputs are NaN before.
  struct Step {
    DeviceBuffer<int32_t> num_rows;
    DeviceBuffer<uint16_t> out;
    AttentionSm90Params p;

    std::vector<float> Result() const {
      std::vector<float> result;
      for (const uint16_t code : ToHost(out)) result.push_back(numerics::Bf16ToFloat(code));
      return result;
    }
  };
  // Rows [first, first + count) of max_rows.
  Step Prepare(int64_t first, int64_t count, int64_t max_rows, int64_t max_window) const {
    const AttentionParams& h = host_;
    const int64_t row = h.heads * h.dim;
    Step step;
    step.num_rows = ToDevice(std::vector<int32_t>{static_cast<int32_t>(count)});
    step.out = ToDevice(std::vector<uint16_t>(static_cast<size_t>(max_rows * row), kPoison));
    AttentionSm90Params& p = step.p;
    p.num_rows = step.num_rows.data();
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
    p.out = reinterpret_cast<__nv_bfloat16*>(step.out.data());
    return step;
  }
  std::vector<float> Run(int64_t first, int64_t count, int64_t max_rows, int64_t max_window,
                         void (*attention)(const AttentionSm90Params&, cudaStream_t)) const {
    const Step step = Prepare(first, count, max_rows, max_window);
    attention(step.p, nullptr);
    SENKO_CUDA(cudaDeviceSynchronize());
    return step.Result();
  }

  // Makes block `block` of a window row (32 values) or of an entry (16 values) what the quantisers write for a NaN.
  void PoisonWindow(int32_t sequence, int64_t position, int64_t block) {
    const auto s = static_cast<size_t>(sequence);
    const SequenceKv& kv = sequences_kv_[s];
    const WindowView& w = host_.window;
    uint8_t* row = position >= kv.first_new
                       ? staging_.data() + (kv.staging_begin + position - kv.first_new) * w.row_stride
                       : slots_[s].data() + w.ring_offset + position % w.ring_rows * w.row_stride;
    SENKO_CUDA(cudaMemset(row + block * 32, numerics::kE4m3Nan, 32));
    SENKO_CUDA(cudaMemset(row + host_.dim + block, 0xFF, 1));
  }
  void PoisonEntry(const World& world, int32_t sequence, int64_t entry, int64_t block) {
    const EntryView& e = host_.entries;
    const int64_t page =
        world.page_lists()[static_cast<size_t>(sequence)][static_cast<size_t>(entry / e.entries_per_page)];
    uint8_t* row = slab_.data() + page * e.page_bytes + e.entry_offset + entry % e.entries_per_page * e.entry_stride;
    SENKO_CUDA(cudaMemset(row + block * 8, 0x77, 8));
    SENKO_CUDA(cudaMemset(row + host_.dim / 2 + block, numerics::kE4m3Nan, 1));
  }

 private:
  AttentionParams host_;
  std::vector<SequenceKv> sequences_kv_;
  DeviceBuffer<uint8_t> staging_, slab_;
  std::vector<DeviceBuffer<uint8_t>> slots_;
  std::vector<DeviceBuffer<int32_t>> pages_;
  DeviceBuffer<SequenceKv> kv_;
  DeviceBuffer<int64_t> positions_, window_begin_;
  DeviceBuffer<int32_t> sequences_, selected_, selected_count_;
  DeviceBuffer<float> rope_, sink_;
  DeviceBuffer<uint16_t> q_;
};

// Rows of three sequences: from the start on, across the first new position, and far on.
WorldSpec SomeRows(const Shape& shape, uint32_t seed) {
  WorldSpec spec;
  spec.shape = shape;
  spec.seed = seed;
  spec.round_bf16 = true;
  const int64_t far = 2 * shape.window + 700;
  for (const RowSpec& row : Rows(shape, 0, 0, 3, seed)) spec.rows.push_back(row);
  for (const RowSpec& row : Rows(shape, 1, shape.window + 1, 7, seed)) spec.rows.push_back(row);
  for (const RowSpec& row : Rows(shape, 2, far, 8, seed)) spec.rows.push_back(row);
  spec.first_new = {0, shape.window + 3, far};
  return spec;
}

TEST_F(AttentionSm90Test, AgreesWithTheReferenceAndWithItself) {
  uint32_t seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  for (const Shape& shape : {Shape{64, 512, 64, 128, 512}, Shape{64, 512, 64, 128, 0}, Shape{20, 512, 64, 128, 100},
                             Shape{64, 512, 64, 300, 40}, Shape{8, 64, 16, 16, 8}, Shape{4, 96, 32, 40, 100}}) {
    for (const uint8_t poison : {0x7F, 0xFF}) {
      WorldSpec spec = SomeRows(shape, ++seed);
      spec.poison = poison;
      World world(spec);
      const std::vector<float> expected = world.Run(AttentionReference);
      DeviceWorld device(world);
      const int64_t n = world.num_rows(), each = shape.heads * shape.dim;
      const std::vector<float> all = device.Run(0, n, n + 2, shape.window, AttentionSm90);
      // A weight is rounded to bf16 against its block's maximum here and against the last one there: the weighted mean
      // of values below 5 moves by 2^-9 of the values twice. The output is rounded before and after it is rotated back,
      // by 2^-9 of itself each, on either side. Signs being random, the whole moves by far less.
      double worst = 0, squares = 0, expected_squares = 0;
      int64_t other = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_TRUE(std::isfinite(expected[i]));
        const double difference = double{all[i]} - expected[i];
        const double error = std::abs(difference) / (5 + 2 * std::abs(double{expected[i]}));
        worst = error <= worst ? worst : error;
        squares += difference * difference;
        expected_squares += double{expected[i]} * expected[i];
        other += all[i] != expected[i];
      }
      EXPECT_LE(worst, 0x1p-8) << shape.heads << " heads of " << shape.dim << ", seed " << spec.seed;
      EXPECT_LE(squares, 0x1p-16 * expected_squares) << shape.heads << " heads of " << shape.dim;
      std::printf("%d heads of %d, window %d, %d entries: error %.2g, rms %.2g, %.1f%% of the outputs differ\n",
                  static_cast<int>(shape.heads), static_cast<int>(shape.dim), static_cast<int>(shape.window),
                  static_cast<int>(shape.topk), worst, std::sqrt(squares / expected_squares),
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

// A NaN in a key is seen in every output of the rows that attend to it, and nowhere else.
TEST_F(AttentionSm90Test, ANanKeyReachesTheOutput) {
  const uint32_t seed = std::random_device{}();
  for (const Shape& shape : {Shape{64, 512, 64, 128, 512}, Shape{20, 512, 64, 100, 30}, Shape{8, 64, 16, 16, 8}}) {
    const WorldSpec spec = SomeRows(shape, seed);
    World world(spec);
    const int64_t n = world.num_rows(), each = shape.heads * shape.dim, far = spec.first_new[2];
    const std::vector<float> clean = DeviceWorld(world).Run(0, n, n, shape.window, AttentionSm90);
    struct Key {
      bool entry;
      int32_t sequence;
      int64_t index;
    };
    const Key keys[] = {{false, 2, far - shape.window + 3},  // in the ring
                        {false, 2, far + 5},                 // new
                        {true, 2, spec.rows.back().selected[3]},
                        {true, 1, spec.rows[5].selected.back()}};
    for (const Key& key : keys) {
      DeviceWorld device(world);
      const int64_t block = shape.dim / (key.entry ? 16 : 32) - 1;  // of the rotated dims
      if (key.entry) {
        device.PoisonEntry(world, key.sequence, key.index, block);
      } else {
        device.PoisonWindow(key.sequence, key.index, block);
      }
      const auto check = [&](const std::vector<float>& got, int64_t first, const char* what) {
        for (size_t i = 0; i < got.size(); ++i) {
          const RowSpec& row = spec.rows[static_cast<size_t>(first) + i / static_cast<size_t>(each)];
          const bool sees =
              row.sequence == key.sequence &&
              (key.entry ? std::count(row.selected.begin(), row.selected.end(), static_cast<int32_t>(key.index)) > 0
                         : row.window_begin <= key.index && key.index <= row.position);
          const float was = clean[static_cast<size_t>(first * each) + i];
          ASSERT_TRUE(sees ? std::isnan(got[i]) : std::memcmp(&got[i], &was, 4) == 0)
              << what << (key.entry ? ", entry " : ", position ") << key.index << " of sequence " << key.sequence
              << ", output " << i << ", seed " << seed;
        }
      };
      check(device.Run(0, n, n, shape.window, AttentionSm90), 0, "all rows");
      check(device.Run(n - 8, 8, 8, shape.window, AttentionSm90), n - 8, "few rows");
      check(device.Run(3, 7, 7, shape.window, AttentionSm90), 3, "few rows");
    }
  }
}

// More rows than multiprocessors, which then take several, one after the other.
TEST_F(AttentionSm90Test, ManyRowsAreTheSameAsFew) {
  const uint32_t seed = std::random_device{}();
  for (const Shape& shape : {Shape{64, 512, 64, 128, 512}, Shape{64, 512, 64, 128, 0}, Shape{20, 512, 64, 100, 100}}) {
    World world(SomeRows(shape, seed));
    constexpr int64_t kTimes = 23;
    const int64_t n = world.num_rows(), each = n * shape.heads * shape.dim;
    const std::vector<float> once = DeviceWorld(world).Run(0, n, n, shape.window, AttentionSm90);
    const DeviceWorld many(world, kTimes);
    for (const int64_t max_rows : {n * kTimes, n * kTimes + 1}) {
      const std::vector<float> all = many.Run(0, n * kTimes, max_rows, shape.window, AttentionSm90);
      for (int64_t i = 0; i < kTimes; ++i) {
        ASSERT_EQ(std::memcmp(all.data() + i * each, once.data(), static_cast<size_t>(each) * 4), 0)
            << i << " of " << kTimes << ", " << shape.topk << " entries, seed " << seed;
      }
    }
  }
}

// One captured launch for any number of rows, keys split or not.
TEST_F(AttentionSm90Test, AGraphServesOtherCounts) {
  const uint32_t seed = std::random_device{}();
  for (const Shape& shape : {Shape{64, 512, 64, 128, 512}, Shape{64, 512, 64, 128, 0}, Shape{8, 64, 16, 16, 8}}) {
    World world(SomeRows(shape, seed));
    const DeviceWorld device(world);
    const int64_t n = world.num_rows(), each = shape.heads * shape.dim;
    const std::vector<float> all = device.Run(0, n, n, shape.window, AttentionSm90);
    for (const int64_t max_rows : {int64_t{4}, int64_t{12}, n}) {
      const DeviceWorld::Step step = device.Prepare(0, max_rows, max_rows, shape.window);
      cuda::CapturedGraph graph([&](cudaStream_t stream) { AttentionSm90(step.p, stream); });
      for (const int64_t rows : {max_rows, int64_t{1}, int64_t{0}, int64_t{3}, max_rows}) {
        cuda::Overwrite(step.num_rows, {static_cast<int32_t>(rows)});
        cuda::Overwrite(step.out, std::vector<uint16_t>(step.out.size(), kPoison));
        graph.Run();
        const std::vector<float> got = step.Result();
        const auto live = static_cast<size_t>(rows * each);
        EXPECT_EQ(std::memcmp(got.data(), all.data(), live * 4), 0) << rows << " of " << max_rows << ", seed " << seed;
        for (size_t i = live; i < got.size(); ++i) ASSERT_TRUE(std::isnan(got[i])) << rows << " of " << max_rows;
      }
    }
  }
}

// Without rounding points: the reference's, within what float32 leaves, and a row's bits its own.
TEST_F(AttentionSm90Test, FloatRowsAreTheReferences) {
  uint32_t seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  for (const Shape& shape :
       {Shape{4, 512, 64, 128, 512}, Shape{8, 64, 16, 16, 8}, Shape{4, 96, 32, 40, 100}, Shape{3, 32, 8, 8, 0}}) {
    WorldSpec spec = SomeRows(shape, ++seed);
    spec.round_bf16 = false;
    World world(spec);
    const std::vector<float> expected = world.Run(AttentionReference);
    DeviceWorld device(world);
    const int64_t n = world.num_rows(), each = shape.heads * shape.dim;
    const auto run = [&](const std::vector<float>& queries, int64_t first, int64_t count) {
      const DeviceWorld::Step step = device.Prepare(first, count, count + 2, shape.window);
      const DeviceBuffer<float> q = ToDevice(queries),
                                out = ToDevice(std::vector<float>(static_cast<size_t>((count + 2) * each), NAN));
      BasicAttentionSm90Params<float> p;
      static_cast<AttentionRowsSm90&>(p) = step.p;
      p.q = q.data() + first * each;
      p.out = out.data();
      AttentionSm90(p, nullptr);
      SENKO_CUDA(cudaDeviceSynchronize());
      return ToHost(out);
    };
    const std::vector<float> all = run(world.q(), 0, n);
    double worst = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      if (i >= expected.size()) {
        ASSERT_TRUE(std::isnan(all[i])) << i;
        continue;
      }
      const double error = std::abs(double{all[i]} - expected[i]);
      worst = error <= worst ? worst : std::isnan(error) ? INFINITY : error;
    }
    // Scores of up to some 10, summed from as many terms as there are dims; then a weighted mean of values of about 1.
    EXPECT_LE(worst, 2e-5) << shape.heads << " heads of " << shape.dim;
    std::printf("%d float heads of %d: off by %.2g\n", static_cast<int>(shape.heads), static_cast<int>(shape.dim),
                worst);
    const std::vector<float> some = run(world.q(), 5, 4);
    EXPECT_EQ(std::memcmp(some.data(), all.data() + 5 * each, static_cast<size_t>(4 * each) * 4), 0);
    std::vector<float> spoilt_q = world.q();
    spoilt_q[static_cast<size_t>(2 * each + 1)] = NAN;  // of the first head
    const std::vector<float> spoilt = run(spoilt_q, 0, n);
    for (int64_t i = 0; i < n * each; ++i) {
      const bool hit = i / shape.dim == 2 * shape.heads;
      ASSERT_EQ(std::isnan(spoilt[static_cast<size_t>(i)]), hit) << i;
      if (!hit) ASSERT_EQ(spoilt[static_cast<size_t>(i)], all[static_cast<size_t>(i)]) << i;
    }
  }
}

}  // namespace
}  // namespace senko::ops
