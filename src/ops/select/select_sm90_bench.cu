// Time of a selection in a graph, released sizes (32 heads of 128, the best 512), by rows and context: dense,
// publishing candidates, inside candidates, and for a prompt's chunk. Keys lie in pages of 128 entries as far apart as
// the released model's; calls take turns over more keys than the L2 cache holds, where a GPU's memory has them.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

#include "cuda/bench_device.cuh"
#include "cuda/device_buffer.h"
#include "ops/select/select_sm90.h"

namespace senko::ops {
namespace {

using cuda::DeviceBuffer;

constexpr int64_t kHeads = 32, kDim = 128, kTopk = 512, kBlocks = 2048, kBlockSize = 8;
constexpr int64_t kPageEntries = 128, kPageBytes = 890 * kPageEntries, kPages = 64 << 13;
constexpr double kOpsPerSecond = 2 * cuda::kFlopsPerSecond;  // int8 has twice the rate of bf16

__global__ void SetScales(uint8_t* slab) {
  for (int64_t page = blockIdx.x; page < kPages; page += gridDim.x) {
    auto* const scales = reinterpret_cast<uint32_t*>(slab + page * kPageBytes + kPageEntries * kDim / 2);
    for (int i = static_cast<int>(threadIdx.x); i < kPageEntries; i += static_cast<int>(blockDim.x)) {
      scales[i] = 0x7E7E7E7Eu + (scales[i] & 0x01010101u);
    }
  }
}

template <typename T>
DeviceBuffer<T> ToDevice(const std::vector<T>& host) {
  DeviceBuffer<T> device(host.size());
  SENKO_CUDA(cudaMemcpy(device.data(), host.data(), device.bytes(), cudaMemcpyHostToDevice));
  return device;
}

struct Keys {
  DeviceBuffer<uint8_t> slab{kPages * kPageBytes};
  DeviceBuffer<int32_t> pages;

  Keys() {
    cuda::FillRandom<<<4096, 256>>>(reinterpret_cast<uint32_t*>(slab.data()), slab.bytes() / 4, ~0u, 0);
    SetScales<<<4096, 128>>>(slab.data());
    std::vector<int32_t> order(kPages);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(1));
    pages = ToDevice(order);
  }
};

enum class Kind { kDense, kPublishing, kRestricted };

void Bench(const Keys& keys, int64_t rows, int64_t context, Kind kind, bool chunk) {
  // Sequences: a row's own, or the chunk's; as many sets of them as fit.
  const int64_t each = context / kPageEntries, set = (chunk ? 1 : rows) * each;
  const int64_t sets = std::min<int64_t>(kPages / set, 8);
  std::mt19937 random(2);
  std::vector<SequenceKv> kv;
  for (int64_t s = 0; s < sets * set / each; ++s) kv.push_back({keys.pages.data() + s * each, nullptr, 0, 0});
  std::vector<int64_t> positions;
  std::vector<int32_t> sequences, candidates, counts;
  double pairs = 0, distinct = 0;
  for (int64_t r = 0; r < rows; ++r) {
    positions.push_back(chunk ? context - rows + r : context - 1);
    sequences.push_back(chunk ? 0 : static_cast<int32_t>(r));
    const double visible = static_cast<double>(positions.back() + 1);
    pairs += kind == Kind::kRestricted ? std::min<double>(visible, kBlocks * kBlockSize) : visible;
    if (kind != Kind::kRestricted) continue;
    std::vector<int32_t> all(static_cast<size_t>((positions.back() + kBlockSize) / kBlockSize));
    std::iota(all.begin(), all.end(), 0);
    const auto newest = all.back();
    all.pop_back();
    std::vector<int32_t> drawn;
    std::sample(all.begin(), all.end(), std::back_inserter(drawn), kBlocks - 1, random);
    drawn.push_back(newest);
    counts.push_back(static_cast<int32_t>(drawn.size()));
    drawn.resize(kBlocks, 0);
    candidates.insert(candidates.end(), drawn.begin(), drawn.end());
  }
  distinct = chunk ? static_cast<double>(context) : pairs;
  if (kind == Kind::kRestricted) distinct = pairs;
  const DeviceBuffer<SequenceKv> d_kv = ToDevice(kv);
  const DeviceBuffer<int64_t> d_positions = ToDevice(positions);
  const DeviceBuffer<int32_t> d_sequences = ToDevice(sequences), d_candidates = ToDevice(candidates),
                              d_counts = ToDevice(counts),
                              count = ToDevice(std::vector<int32_t>{static_cast<int32_t>(rows)});
  const DeviceBuffer<uint8_t> q(static_cast<size_t>(rows * kHeads * kDim / 2)),
      q_scales(static_cast<size_t>(rows * kHeads * kDim / 32));
  cuda::FillRandom<<<1024, 256>>>(reinterpret_cast<uint32_t*>(q.data()), q.bytes() / 4, ~0u, 0);
  cuda::FillRandom<<<1024, 256>>>(reinterpret_cast<uint32_t*>(q_scales.data()), q_scales.bytes() / 4, 0x01010101u,
                                  0x7E7E7E7Eu);
  std::vector<float> w(static_cast<size_t>(rows * kHeads));
  std::normal_distribution<float> normal;
  for (float& f : w) f = normal(random) / 64;
  const DeviceBuffer<float> weights = ToDevice(w);
  const DeviceBuffer<int32_t> selected(static_cast<size_t>(rows * kTopk)), selected_count(static_cast<size_t>(rows)),
      published(static_cast<size_t>(rows * kBlocks)), published_count(static_cast<size_t>(rows));
  SelectSm90Params p;
  p.num_rows = count.data();
  p.max_rows = rows;
  p.rows.positions = d_positions.data();
  p.rows.sequences = d_sequences.data();
  p.heads = kHeads;
  p.dim = kDim;
  p.q_values = q.data();
  p.q_scales = q_scales.data();
  p.weights = weights.data();
  p.entries.slab = keys.slab.data();
  p.entries.page_bytes = kPageBytes;
  p.entries.entries_per_page = kPageEntries;
  p.entries.key_value_bytes = kDim / 2;
  p.entries.key_scale_offset = kPageEntries * kDim / 2;
  p.entries.key_scale_bytes = kDim / 32;
  p.topk = kTopk;
  p.candidate_blocks = p.candidate_stride = kBlocks;
  p.candidate_block_size = kBlockSize;
  if (kind == Kind::kRestricted) {
    p.candidates = d_candidates.data();
    p.candidate_count = d_counts.data();
  }
  if (kind == Kind::kPublishing) {
    p.candidates_out = published.data();
    p.candidate_count_out = published_count.data();
  }
  p.selected = selected.data();
  p.selected_count = selected_count.data();
  p.selected_stride = kTopk;
  p.scratch_bytes = SelectScratchBytes(rows, context, kTopk, kBlocks);
  const DeviceBuffer<uint8_t> scratch(p.scratch_bytes);
  p.scratch = scratch.data();
  cudaStream_t stream;
  SENKO_CUDA(cudaStreamCreate(&stream));
  const double bytes = distinct * (kDim / 2 + kDim / 32), ops = pairs * kHeads * kDim * 2;
  const double floor = std::max(bytes / cuda::kBytesPerSecond, ops / kOpsPerSecond);
  const double t = cuda::SecondsPerCall(stream, floor, [&](int i) {
    SelectSm90Params mine = p;
    mine.rows.sequence_kv = d_kv.data() + i % sets * (set / each);
    SelectSm90(mine, stream);
  });
  const char* const names[] = {"dense", "publishing", "restricted"};
  std::printf(
      "%-10s %5lld rows of %s%8lld entries  %10.2f us  %8.1f MB  %5.2f TB/s  %7.1f TOP/s  %5.1f%% of the limit (%s)\n",
      names[static_cast<int>(kind)], static_cast<long long>(rows), chunk ? "one prompt's " : "",
      static_cast<long long>(context), t * 1e6, bytes * 1e-6, bytes / t * 1e-12, ops / t * 1e-12, floor / t * 100,
      floor * kOpsPerSecond <= ops ? "int8" : "memory");
  std::fflush(stdout);
  SENKO_CUDA(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace senko::ops

int main() {
  return senko::cuda::MainOnDevice([] {
    using senko::ops::Kind;
    const senko::ops::Keys keys;
    for (const int64_t context : {512, 8 << 10, 64 << 10, 512 << 10, 1 << 20}) {
      for (const int64_t rows : {1, 8, 64}) senko::ops::Bench(keys, rows, context, Kind::kDense, false);
    }
    for (const int64_t context : {64 << 10, 1 << 20}) {
      for (const int64_t rows : {1, 8, 64}) senko::ops::Bench(keys, rows, context, Kind::kPublishing, false);
    }
    for (const int64_t context : {64 << 10, 1 << 20}) {
      for (const int64_t rows : {1, 8, 64}) senko::ops::Bench(keys, rows, context, Kind::kRestricted, false);
    }
    senko::ops::Bench(keys, 1024, 128 << 10, Kind::kRestricted, true);
    senko::ops::Bench(keys, 8192, 8 << 10, Kind::kDense, true);
    senko::ops::Bench(keys, 8192, 128 << 10, Kind::kDense, true);
  });
}
