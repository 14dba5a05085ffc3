// Time of attention in a graph: 64 heads of 512 over 128 window rows and 512 entries of sequences of their own, by
// rows.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "cuda/bench_device.cuh"
#include "cuda/device_buffer.h"
#include "ops/attention/attention_sm90.h"

namespace senko::ops {
namespace {

using cuda::DeviceBuffer;
using cuda::ToDevice;

void Bench(int64_t rows) {
  constexpr int64_t kHeads = 64, kDim = 512, kWindow = 128, kTopk = 512, kEntries = 8192, kInPage = 64;
  constexpr int64_t kRowStride = 528, kEntryStride = 288, kPageBytes = kInPage * kEntryStride;
  const int64_t sequences = std::min<int64_t>(rows, 64);
  DeviceBuffer<uint8_t> slots(static_cast<size_t>(sequences * 144 * kRowStride)),
      slab(static_cast<size_t>(sequences * kEntries * kEntryStride));
  // Codes below e4m3's NaN, scales that do not matter for time.
  cuda::FillRandom<<<1024, 256>>>(reinterpret_cast<uint32_t*>(slots.data()), slots.bytes() / 4, 0x3F3F3F3Fu,
                                  0x40404040u);
  cuda::FillRandom<<<1024, 256>>>(reinterpret_cast<uint32_t*>(slab.data()), slab.bytes() / 4, 0x3F3F3F3Fu, 0);
  std::vector<int32_t> pages(static_cast<size_t>(sequences * kEntries / kInPage));
  for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int32_t>(i);
  const DeviceBuffer<int32_t> d_pages = ToDevice(pages);
  std::vector<SequenceKv> kv;
  for (int64_t s = 0; s < sequences; ++s) {
    kv.push_back({d_pages.data() + s * (kEntries / kInPage), slots.data() + s * 144 * kRowStride, INT64_MAX, 0});
  }
  std::vector<int64_t> positions, begins;
  std::vector<int32_t> of, selected, counts;
  for (int64_t r = 0; r < rows; ++r) {
    positions.push_back(9000 + r);
    begins.push_back(9000 + r - kWindow + 1);
    of.push_back(static_cast<int32_t>(r % sequences));
    for (int64_t k = 0; k < kTopk; ++k) selected.push_back(static_cast<int32_t>(k * 16 + (r * 7 + k * 5) % 16));
    counts.push_back(static_cast<int32_t>(kTopk));
  }
  const DeviceBuffer<SequenceKv> d_kv = ToDevice(kv);
  const DeviceBuffer<int64_t> d_positions = ToDevice(positions), d_begins = ToDevice(begins);
  const DeviceBuffer<int32_t> d_of = ToDevice(of), d_selected = ToDevice(selected), d_counts = ToDevice(counts),
                              num_rows = ToDevice(std::vector<int32_t>{static_cast<int32_t>(rows)});
  const DeviceBuffer<__nv_bfloat16> q(static_cast<size_t>(rows * kHeads * kDim)), out(q.size());
  cuda::FillRandom<<<1024, 256>>>(reinterpret_cast<uint32_t*>(q.data()), q.bytes() / 4, 0x80FF80FFu, 0x3D003D00u);
  const DeviceBuffer<float> rope = ToDevice(std::vector<float>(static_cast<size_t>(rows * 64), 0.7f)),
                            sink = ToDevice(std::vector<float>(kHeads, 1.0f));
  AttentionSm90Params p;
  p.num_rows = num_rows.data();
  p.max_rows = rows;
  p.rows = {rows, d_positions.data(), d_of.data(), d_begins.data(), d_kv.data(), sequences};
  p.heads = kHeads;
  p.dim = kDim;
  p.rope_dim = 64;
  p.max_window = kWindow;
  p.q = q.data();
  p.rope = rope.data();
  p.sink = sink.data();
  p.scale = 0.044f;
  p.window = {0, 144, kRowStride, slots.data()};
  p.selected = d_selected.data();
  p.selected_count = d_counts.data();
  p.selected_stride = kTopk;
  p.entries.slab = slab.data();
  p.entries.page_bytes = kPageBytes;
  p.entries.entries_per_page = kInPage;
  p.entries.entry_stride = kEntryStride;
  p.out = out.data();
  cudaStream_t stream;
  SENKO_CUDA(cudaStreamCreate(&stream));
  const double flops = 2.0 * static_cast<double>(rows * kHeads * (kWindow + kTopk) * 2 * kDim);
  const double bytes = static_cast<double>(rows) * (kWindow * kRowStride + kTopk * kEntryStride + 4.0 * kHeads * kDim);
  const double floor = std::max(flops / cuda::kFlopsPerSecond, bytes / cuda::kBytesPerSecond);
  const double t = cuda::SecondsPerCall(stream, std::max(floor, 2e-5), [&](int) { AttentionSm90(p, stream); });
  std::printf("attention %5lld rows  %8.2f us  %5.2f TB/s  %6.1f TFLOP/s  %5.1f%% of the limit\n",
              static_cast<long long>(rows), t * 1e6, bytes / t * 1e-12, flops / t * 1e-12, floor / t * 100);
  SENKO_CUDA(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace senko::ops

// Arguments: numbers of rows, instead of the usual ones.
int main(int argc, char** argv) {
  std::vector<int64_t> rows;
  for (int i = 1; i < argc; ++i) rows.push_back(std::atoll(argv[i]));
  if (rows.empty()) rows = {1, 4, 8, 12, 13, 64, 132, 1024, 8192};
  return senko::cuda::MainOnDevice([&rows] {
    for (const int64_t n : rows) senko::ops::Bench(n);
  });
}
