// Time of routing in a graph of dependent launches, the gate cold: as many copies as the L2 cache cannot hold are used
// in turn. Two launches for few rows against the four for any number.
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

#include "cuda/bench_device.cuh"
#include "cuda/device_buffer.h"
#include "ops/router/router_sm90.h"

namespace senko::ops {
namespace {

using cuda::DeviceBuffer;
using cuda::FillRandom;

constexpr int64_t kExperts = 384, kHidden = 5120, kTopk = 6;
constexpr int kCopies = 40;

void Bench(int64_t rows) {
  const size_t bytes = TileBytes(WeightFormat::kBf16, kExperts, kHidden);
  const DeviceBuffer<uint8_t> tiles(bytes * kCopies);
  const DeviceBuffer<__nv_bfloat16> x(static_cast<size_t>(rows * kHidden));
  FillRandom<<<1024, 256>>>(reinterpret_cast<uint32_t*>(tiles.data()), tiles.bytes() / 4, 0x80FF80FFu, 0x3C003C00u);
  FillRandom<<<1024, 256>>>(reinterpret_cast<uint32_t*>(x.data()), x.bytes() / 4, 0x80FF80FFu, 0x3F003F00u);
  const DeviceBuffer<float> bias = cuda::ToDevice(std::vector<float>(kExperts)),
                            scores(RouterScratchFloats(kExperts, kHidden, rows)),
                            weights(static_cast<size_t>(rows * kTopk));
  const DeviceBuffer<int32_t> count = cuda::ToDevice(std::vector<int32_t>{static_cast<int32_t>(rows)}),
                              ids(weights.size()), pairs(weights.size()), counts(kExperts), num_items(1);
  const int64_t block = rows <= 64 ? 8 : 128;
  const DeviceBuffer<ExpertItem> items(static_cast<size_t>(MaxExpertItems(rows, kTopk, kExperts, block)));
  cudaStream_t stream;
  SENKO_CUDA(cudaStreamCreate(&stream));
  RouterSm90Params r;
  r.rows = count.data();
  r.max_rows = rows;
  r.num_experts = kExperts;
  r.topk = kTopk;
  r.x = x.data();
  r.bias = r.bias_vl = bias.data();
  r.scaling = 1.5f;
  r.scores = scores.data();
  r.ids = ids.data();
  r.weights = weights.data();
  const DispatchSm90Params d{count.data(),  kExperts,     kTopk,        block,           ids.data(),
                             counts.data(), pairs.data(), items.data(), num_items.data()};
  const double floor = static_cast<double>(bytes) / cuda::kBytesPerSecond;
  const auto gate = [&](int i) {
    r.gate = {WeightFormat::kBf16, kExperts, kHidden, tiles.data() + static_cast<size_t>(i % kCopies) * bytes, nullptr};
  };
  const double four = cuda::SecondsPerCall(stream, floor, [&](int i) {
    gate(i);
    RouterSm90(r, stream);
    DispatchSm90(d, stream);
  });
  const double chosen = cuda::SecondsPerCall(stream, floor, [&](int i) {
    gate(i);
    RouteSm90(r, d, stream);
  });
  std::printf("%5lld rows: %7.2f us in four launches, %7.2f us as chosen, %5.1f%% of the limit\n",
              static_cast<long long>(rows), four * 1e6, chosen * 1e6, floor / chosen * 100);
  SENKO_CUDA(cudaStreamDestroy(stream));
}

void All() {
  for (const int64_t rows : {1, 8, 16, 32, 64, 128, 1024, 8192}) Bench(rows);
}

}  // namespace
}  // namespace senko::ops

int main() { return senko::cuda::MainOnDevice(senko::ops::All); }
