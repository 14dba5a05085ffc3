// Rings of several layers after random walks of several sequences: the host's, byte for byte.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
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

class WindowCommitSm90Test : public cuda::DeviceTest {};

struct Shape {
  int64_t ring_rows, row_stride, layers, sequences, most_rows;
};
constexpr Shape kShapes[] = {{1, 48, 2, 3, 9},      {7, 48, 3, 4, 20},     {16, 80, 5, 5, 60},
                             {144, 528, 4, 3, 400}, {144, 528, 40, 2, 10}, {136, 544, 1, 200, 3}};

TEST_F(WindowCommitSm90Test, RingsAreTheHosts) {
  std::mt19937_64 random(std::random_device{}());
  for (const Shape& shape : kShapes) {
    const int64_t ring_bytes = shape.ring_rows * shape.row_stride + 32, ring_offset = 64;
    const int64_t slot_bytes = ring_offset + shape.layers * ring_bytes + 16, max_sequences = shape.sequences + 3;
    const int64_t staging_rows = shape.sequences * (shape.most_rows + 1) + 2;
    const int64_t staging_stride = staging_rows * shape.row_stride + 64;
    std::vector<uint8_t> slots(static_cast<size_t>(shape.sequences * slot_bytes), 0xEE);
    const DeviceBuffer<uint8_t> d_slots = ToDevice(slots),
                                d_staging(static_cast<size_t>(shape.layers * staging_stride));
    const DeviceBuffer<SequenceKv> d_sequences(static_cast<size_t>(max_sequences));
    const DeviceBuffer<int32_t> num_sequences(1), d_counts(static_cast<size_t>(max_sequences));
    WindowCommitSm90Params p;
    p.num_sequences = num_sequences.data();
    p.max_sequences = max_sequences;
    p.sequences = d_sequences.data();
    p.row_counts = d_counts.data();
    p.ring_offset = ring_offset;
    p.ring_stride = ring_bytes;
    p.ring_rows = shape.ring_rows;
    p.row_stride = shape.row_stride;
    p.staging = d_staging.data();
    p.staging_stride = staging_stride;
    p.num_layers = shape.layers;
    cuda::CapturedGraph graph([&](cudaStream_t stream) { WindowCommitSm90(p, stream); });
    std::vector<int64_t> next(static_cast<size_t>(shape.sequences));
    for (int64_t& position : next) position = static_cast<int64_t>(random() % 1000000);
    for (int step = 0; step < 12; ++step) {
      std::vector<uint8_t> staging(d_staging.size());
      for (uint8_t& byte : staging) byte = static_cast<uint8_t>(random());
      const auto live = static_cast<int64_t>(step == 0 ? 0 : step == 1 ? shape.sequences : random() % next.size() + 1);
      std::vector<SequenceKv> host, device(static_cast<size_t>(max_sequences));  // those not live have no slot
      std::vector<int32_t> counts(static_cast<size_t>(max_sequences), 5);
      std::vector<int64_t> host_counts;
      int64_t begin = 1;
      for (int64_t s = 0; s < live; ++s) {
        const auto at = static_cast<size_t>(s);
        const int64_t most = step % 3 == 0 ? std::min<int64_t>(shape.most_rows, 2) : shape.most_rows;
        const int64_t count = static_cast<int64_t>(random() % static_cast<uint64_t>(most + 1));
        SequenceKv sequence;
        sequence.first_new = next[at];
        sequence.staging_begin = begin;
        sequence.slot = slots.data() + s * slot_bytes;
        host.push_back(sequence);
        sequence.slot = d_slots.data() + s * slot_bytes;
        device[at] = sequence;
        counts[at] = static_cast<int32_t>(count);
        host_counts.push_back(count);
        begin += count + 1;
        next[at] += count;
      }
      for (int64_t layer = 0; layer < shape.layers; ++layer) {
        WindowCommit({host.data(), host_counts.data(), live,
                      WindowView{ring_offset + layer * ring_bytes, shape.ring_rows, shape.row_stride,
                                 staging.data() + layer * staging_stride}});
      }
      Overwrite(num_sequences, {static_cast<int32_t>(live)});
      Overwrite(d_counts, counts);
      Overwrite(d_sequences, device);
      Overwrite(d_staging, staging);
      graph.Run();
      ASSERT_TRUE(ToHost(d_slots) == slots) << "ring of " << shape.ring_rows << ", step " << step;
    }
  }
}

}  // namespace
}  // namespace senko::ops
