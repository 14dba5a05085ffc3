// Time of grouped experts in a graph, released sizes (FP4, 5,120 x 2,304, six of a row; the shared one in FP8), by rows
// and experts. Rows choose evenly; the routed weights of a layer are larger than the L2 cache, and shared ones are
// taken in turn. Arguments: which of them, as EXPERTS/ROWS/BLOCK, "+" behind those with the shared one, e.g. 64/8/8+.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cuda/bench_device.cuh"
#include "cuda/device_buffer.h"
#include "ops/experts/experts_sm90.h"

namespace senko::ops {
namespace {

using cuda::DeviceBuffer;

constexpr int64_t kHidden = 5120, kInter = 2304, kTopk = 6;

struct Weights {
  DeviceBuffer<uint8_t> up, up_scales, down, down_scales;
  ExpertTiles tiles;
  size_t expert_bytes;

  Weights(WeightFormat format, int64_t experts) {
    const auto n = static_cast<size_t>(experts);
    const bool fp8 = format == WeightFormat::kFp8;
    up = DeviceBuffer<uint8_t>(n * TileBytes(format, 2 * kInter, kHidden));
    up_scales = DeviceBuffer<uint8_t>(n * TileScaleBytes(format, 2 * kInter, kHidden));
    down = DeviceBuffer<uint8_t>(n * TileBytes(format, kHidden, kInter));
    down_scales = DeviceBuffer<uint8_t>(n * TileScaleBytes(format, kHidden, kInter));
    expert_bytes = (up.bytes() + up_scales.bytes() + down.bytes() + down_scales.bytes()) / n;
    const uint32_t mask = fp8 ? 0xBFBFBFBFu : ~0u;  // no NaN
    cuda::FillRandom<<<1024, 256>>>(reinterpret_cast<uint32_t*>(up.data()), up.bytes() / 4, mask, 0);
    cuda::FillRandom<<<1024, 256>>>(reinterpret_cast<uint32_t*>(down.data()), down.bytes() / 4, mask, 0);
    SENKO_CUDA(cudaMemset(up_scales.data(), 120, up_scales.bytes()));
    SENKO_CUDA(cudaMemset(down_scales.data(), 120, down_scales.bytes()));
    tiles = {format, kInter, kHidden, up.data(), up_scales.data(), down.data(), down_scales.data()};
  }
};

constexpr int64_t kShared = 8;  // shared experts, one a call, 35 MB each

enum class Parts { kRouted, kBoth };

void Bench(const Weights& weights, const Weights& shared, int64_t experts, int64_t rows, int64_t block, Parts parts) {
  constexpr int kRoutings = 8;  // in turn, so that few rows do not find their experts in the cache
  std::mt19937 random(1);
  std::vector<DeviceBuffer<int32_t>> ids;
  int64_t distinct = 0;
  for (int r = 0; r < kRoutings; ++r) {
    std::vector<int32_t> host, order(static_cast<size_t>(experts));
    for (size_t e = 0; e < order.size(); ++e) order[e] = static_cast<int32_t>(e);
    std::vector<bool> seen(order.size());
    for (int64_t row = 0; row < rows; ++row) {
      for (size_t k = 0; k < static_cast<size_t>(kTopk); ++k) {
        std::swap(order[k], order[k + random() % (order.size() - k)]);
        host.push_back(order[k]);
        seen[static_cast<size_t>(order[k])] = true;
      }
    }
    distinct += std::count(seen.begin(), seen.end(), true);
    ids.emplace_back(host.size());
    SENKO_CUDA(cudaMemcpy(ids.back().data(), host.data(), ids.back().bytes(), cudaMemcpyHostToDevice));
  }
  const int64_t max_items = MaxExpertItems(rows, kTopk, experts, block);
  const DeviceBuffer<int32_t> count(1), counts(static_cast<size_t>(experts)), pairs(static_cast<size_t>(rows * kTopk)),
      num_items(1);
  const auto n = static_cast<int32_t>(rows);
  SENKO_CUDA(cudaMemcpy(count.data(), &n, 4, cudaMemcpyHostToDevice));
  const DeviceBuffer<ExpertItem> items(static_cast<size_t>(max_items));
  const DeviceBuffer<__nv_bfloat16> x(static_cast<size_t>(rows * kHidden)),
      h(static_cast<size_t>(rows * kTopk * kInter)), shared_h(static_cast<size_t>(rows * kInter)),
      y(static_cast<size_t>(rows * (kTopk + 1) * kHidden));
  const DeviceBuffer<uint8_t> scratch(ExpertsScratchBytes(kHidden, kInter, kInter));
  SENKO_CUDA(cudaMemset(scratch.data(), 0, kExpertTicketBytes));
  cuda::FillRandom<<<1024, 256>>>(reinterpret_cast<uint32_t*>(x.data()), x.bytes() / 4, 0x80FF80FFu, 0x3D003D00u);
  cudaStream_t stream;
  SENKO_CUDA(cudaStreamCreate(&stream));
  ExpertsSm90Params p;
  p.num_items = num_items.data();
  p.max_items = max_items;
  p.items = items.data();
  p.pairs = pairs.data();
  p.block = block;
  p.topk = kTopk;
  p.weights = weights.tiles;
  p.x = x.data();
  p.swiglu_limit = 10;
  p.h = h.data();
  p.y = y.data();
  p.y_row_slots = kTopk + 1;
  p.scratch = scratch.data();
  p.rows = count.data();
  p.max_rows = rows;
  p.shared_h = shared_h.data();
  const bool both = parts == Parts::kBoth;
  const double bytes = static_cast<double>(distinct) / kRoutings * static_cast<double>(weights.expert_bytes) +
                       (both ? static_cast<double>(shared.expert_bytes) : 0);
  const double flops = 2.0 * static_cast<double>(rows * (kTopk + both)) * 3 * kHidden * kInter;
  const double floor = std::max(bytes / cuda::kBytesPerSecond, flops / cuda::kFlopsPerSecond);
  const double t = cuda::SecondsPerCall(stream, floor, [&](int i) {
    DispatchSm90({count.data(), experts, kTopk, block, ids[static_cast<size_t>(i % kRoutings)].data(), counts.data(),
                  pairs.data(), items.data(), num_items.data()},
                 stream);
    ExpertsSm90Params now = p;
    if (both) {  // expert i % kShared of `shared`
      const ExpertTiles& w = shared.tiles;
      const auto at = [&](const uint8_t* of_all, const DeviceBuffer<uint8_t>& all) {
        return of_all + all.bytes() / kShared * static_cast<size_t>(i % kShared);
      };
      now.shared = {w.format,
                    kInter,
                    kHidden,
                    at(w.up, shared.up),
                    at(w.up_scales, shared.up_scales),
                    at(w.down, shared.down),
                    at(w.down_scales, shared.down_scales)};
    }
    ExpertsSm90(now, stream);
  });
  std::printf(
      "experts of %3lld%s, %5lld rows, items of %3lld  %9.2f us  %8.1f MB  %5.2f TB/s  %6.1f TFLOP/s  %5.1f%% of the "
      "limit%s\n",
      static_cast<long long>(experts), both ? " + shared" : "         ", static_cast<long long>(rows),
      static_cast<long long>(block), t * 1e6, bytes * 1e-6, bytes / t * 1e-12, flops / t * 1e-12, floor / t * 100,
      block == ExpertBlock(rows, kTopk, experts) ? "  (chosen)" : "");
  SENKO_CUDA(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace senko::ops

int main(int argc, char** argv) {
  using namespace senko::ops;  // NOLINT: the benchmark's
  const std::set<std::string> asked(argv + 1, argv + argc);
  return senko::cuda::MainOnDevice([&] {
    const Weights shared(WeightFormat::kFp8, kShared);
    for (const int64_t experts : {64, 384}) {
      const Weights weights(WeightFormat::kFp4, experts);
      const auto bench = [&](int64_t rows, int64_t block, Parts parts) {
        const std::string name = std::to_string(experts) + "/" + std::to_string(rows) + "/" + std::to_string(block) +
                                 (parts == Parts::kBoth ? "+" : "");
        if (asked.empty() || asked.contains(name)) Bench(weights, shared, experts, rows, block, parts);
      };
      for (const int64_t rows : {1, 8, 64}) {
        for (const Parts parts : {Parts::kRouted, Parts::kBoth}) {
          for (const int64_t block : {8, 16}) bench(rows, block, parts);
        }
      }
      for (const int64_t rows : {256, 1024}) {
        for (const int64_t block : {16, 32, 64, 128}) bench(rows, block, Parts::kRouted);
      }
      bench(8192, 128, Parts::kRouted);
      bench(8192, 128, Parts::kBoth);
    }
  });
}
