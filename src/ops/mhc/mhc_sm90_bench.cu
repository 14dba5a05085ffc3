// Time of a seam and of its coefficients in graphs of dependent launches. The projection is cold: more copies are used
// in turn than the L2 cache holds. Streams and outputs of few rows are in the cache, as they are behind the kernel that
// wrote them; so are the norm's weights, which a step finds cold.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "cuda/bench_device.cuh"
#include "cuda/device_buffer.h"
#include "ops/mhc/mhc_sm90.h"

namespace senko::ops {
namespace {

using cuda::DeviceBuffer;
using cuda::FillRandom;

constexpr int64_t kHidden = 5120, kWidth = kMhcStreams * kHidden;
constexpr int kCopies = 40;  // of a projection of 5 MB

template <typename T>
DeviceBuffer<T> Random(int64_t count, uint32_t mask, uint32_t set) {
  DeviceBuffer<T> b(static_cast<size_t>(count));
  FillRandom<<<1024, 256>>>(reinterpret_cast<uint32_t*>(b.data()), b.bytes() / 4, mask, set);
  return b;
}
DeviceBuffer<__nv_bfloat16> RandomRows(int64_t count) {  // 0.5 to 1
  return Random<__nv_bfloat16>(count, 0x007F007Fu, 0x3F003F00u);
}
DeviceBuffer<float> RandomFloats(int64_t count) { return Random<float>(count, 0x007FFFFFu, 0x3E800000u); }

void Seam(int64_t rows, int64_t slots, void (*seam)(const MhcSeamSm90Params&, cudaStream_t), const char* name) {
  const DeviceBuffer<float> weight = RandomFloats(kHidden);
  const DeviceBuffer<__nv_bfloat16> streams = RandomRows(rows * kWidth), y = RandomRows(rows * slots * kHidden);
  const DeviceBuffer<__nv_bfloat16> x(static_cast<size_t>(rows * kHidden)), xq(x.size());
  // Rows of comb that add up to less than one: streams do not grow from call to call.
  const DeviceBuffer<float> post = RandomFloats(rows * 4), pre = RandomFloats(rows * 4),
                            comb = Random<float>(rows * 16, 0x007FFFFFu, 0x3D800000u);
  const DeviceBuffer<int32_t> count = cuda::ToDevice(std::vector<int32_t>{static_cast<int32_t>(rows)});
  cudaStream_t stream;
  SENKO_CUDA(cudaStreamCreate(&stream));
  MhcSeamSm90Params p;
  p.rows = count.data();
  p.max_rows = rows;
  p.hidden = kHidden;
  p.y = y.data();
  p.y_slots = slots;
  p.post = post.data();
  p.comb = comb.data();
  p.streams = streams.data();
  p.pre = pre.data();
  p.norm_weight = weight.data();
  p.rms_eps = 1e-6f;
  p.x = x.data();
  p.xq = xq.data();
  const double bytes = static_cast<double>(rows * 2) * static_cast<double>(2 * kWidth + (slots + 2) * kHidden);
  const double floor = std::max(bytes / cuda::kBytesPerSecond, 1e-6);
  const double t = cuda::SecondsPerCall(stream, floor, [&](int) { seam(p, stream); });
  std::printf("seam %-8s %5lld rows, %lld slots: %8.2f us  %5.2f TB/s\n", name, static_cast<long long>(rows),
              static_cast<long long>(slots), t * 1e6, bytes / t * 1e-12);
  SENKO_CUDA(cudaStreamDestroy(stream));
}

void Mix(int64_t rows, void (*mix)(const MhcMixSm90Params&, cudaStream_t), const char* name) {
  const int64_t out = 3 * kMhcOutputs;
  const size_t tile_bytes = TileBytes(WeightFormat::kBf16, out, kWidth);
  const DeviceBuffer<uint8_t> tiles(tile_bytes * kCopies);
  FillRandom<<<1024, 256>>>(reinterpret_cast<uint32_t*>(tiles.data()), tiles.bytes() / 4, 0x80FF80FFu, 0x3A003A00u);
  const DeviceBuffer<__nv_bfloat16> streams = RandomRows(rows * kWidth);
  const DeviceBuffer<float> base = RandomFloats(24), scale = RandomFloats(3),
                            scratch(MhcMixScratchFloats(kHidden, rows)), pre(static_cast<size_t>(rows * 4)),
                            post(static_cast<size_t>(rows * 4)), comb(static_cast<size_t>(rows * 16));
  const DeviceBuffer<int32_t> count = cuda::ToDevice(std::vector<int32_t>{static_cast<int32_t>(rows)});
  cudaStream_t stream;
  SENKO_CUDA(cudaStreamCreate(&stream));
  MhcMixSm90Params p;
  p.rows = count.data();
  p.max_rows = rows;
  p.hidden = kHidden;
  p.streams = streams.data();
  p.base = base.data();
  p.scale = scale.data();
  p.rms_eps = p.hc_eps = 1e-6f;
  p.sinkhorn_iters = 20;
  p.scratch = scratch.data();
  p.pre = pre.data();
  p.post = post.data();
  p.comb = comb.data();
  const double bytes = static_cast<double>(out * kWidth * 2 + rows * kWidth * 2);
  const double t = cuda::SecondsPerCall(stream, std::max(bytes / cuda::kBytesPerSecond, 1e-6), [&](int i) {
    p.fn = {WeightFormat::kBf16, out, kWidth, tiles.data() + static_cast<size_t>(i % kCopies) * tile_bytes, nullptr};
    mix(p, stream);
  });
  std::printf("mix  %-8s %5lld rows         : %8.2f us  %5.2f TB/s\n", name, static_cast<long long>(rows), t * 1e6,
              bytes / t * 1e-12);
  SENKO_CUDA(cudaStreamDestroy(stream));
}

void All() {
  for (const int64_t rows : {1, 8, 64, 128, 8192}) {
    for (const int64_t slots : {1, 7}) Seam(rows, slots, MhcSeamSm90, "");
  }
  for (const int64_t rows : {1, 8, 64, 128, 8192}) Mix(rows, MhcMixSm90, "");
}

}  // namespace
}  // namespace senko::ops

int main() { return senko::cuda::MainOnDevice(senko::ops::All); }
