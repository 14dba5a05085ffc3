// Time per call of the linears of sm_90a in a graph, weights cold: as many copies as make 1 GiB are used in turn.
// Prints bytes of weights per second and FLOP per second, as shares of the rates measured on this machine (machine.md).
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "cuda/bench_device.cuh"
#include "cuda/device_buffer.h"
#include "ops/linear/linear_sm90.h"

namespace senko::ops {
namespace {

using cuda::DeviceBuffer;
using cuda::FillRandom;
using cuda::kBytesPerSecond;
using cuda::kFlopsPerSecond;

void Bench(WeightFormat format, int64_t out, int64_t in, int64_t rows,
           void (*linear)(const LinearSm90Params&, cudaStream_t), const char* name) {
  const size_t bytes = TileBytes(format, out, in), scale_bytes = TileScaleBytes(format, out, in);
  const int copies = static_cast<int>(std::min<size_t>((size_t{1} << 30) / bytes + 1, 200));
  DeviceBuffer<uint8_t> tiles(bytes * copies), scales(scale_bytes * copies + 256);
  // Codes without NaN: fp8 and fp4 need no more than clear top exponent bits; bf16 small normal numbers.
  const uint32_t mask = format == WeightFormat::kFp8 ? 0xBFBFBFBFu : format == WeightFormat::kFp4 ? ~0u : 0x80FF80FFu;
  const uint32_t set = format == WeightFormat::kBf16 ? 0x3D003D00u : 0;
  FillRandom<<<1024, 256>>>(reinterpret_cast<uint32_t*>(tiles.data()), tiles.bytes() / 4, mask, set);
  SENKO_CUDA(cudaMemset(scales.data(), 120, scales.bytes()));
  DeviceBuffer<__nv_bfloat16> x(static_cast<size_t>(rows * in)), y(static_cast<size_t>(rows * out));
  FillRandom<<<1024, 256>>>(reinterpret_cast<uint32_t*>(x.data()), x.bytes() / 4, 0x80FF80FFu, 0x3F003F00u);
  DeviceBuffer<int32_t> count(1);
  const auto n = static_cast<int32_t>(rows);
  SENKO_CUDA(cudaMemcpy(count.data(), &n, 4, cudaMemcpyHostToDevice));
  cudaStream_t stream;
  SENKO_CUDA(cudaStreamCreate(&stream));
  LinearSm90Params p;
  p.rows = count.data();
  p.max_rows = rows;
  p.x = x.data();
  p.x_stride = in;
  p.y_bf16 = y.data();
  p.y_stride = out;
  const auto call = [&](int i) {
    const size_t c = static_cast<size_t>(i % copies);
    p.weight = {format, out, in, tiles.data() + c * bytes, scales.data() + c * scale_bytes};
    linear(p, stream);
  };
  const double floor = std::max(static_cast<double>(bytes + scale_bytes) / kBytesPerSecond,
                                2.0 * static_cast<double>(rows * out * in) / kFlopsPerSecond);
  const double t = cuda::SecondsPerCall(stream, floor, call);
  std::printf("%-6s %-4s %6lld x %5lld  %5lld rows  %8.2f us  %5.2f TB/s  %6.1f TFLOP/s  %5.1f%% of the limit\n", name,
              format == WeightFormat::kFp8   ? "fp8"
              : format == WeightFormat::kFp4 ? "fp4"
                                             : "bf16",
              static_cast<long long>(out), static_cast<long long>(in), static_cast<long long>(rows), t * 1e6,
              static_cast<double>(bytes + scale_bytes) / t * 1e-12,
              2.0 * static_cast<double>(rows * out * in) / t * 1e-12, floor / t * 100);
  cudaStreamDestroy(stream);
}

void All() {
  struct Size {
    WeightFormat format;
    int64_t out, in;
  };
  const Size sizes[] = {
      {WeightFormat::kFp8, 1792, 5120}, {WeightFormat::kFp8, 32768, 1280}, {WeightFormat::kFp8, 5120, 8192},
      {WeightFormat::kFp8, 4608, 5120}, {WeightFormat::kFp8, 5120, 2304},  {WeightFormat::kFp4, 4608, 5120},
      {WeightFormat::kBf16, 384, 5120}, {WeightFormat::kFp8, 25600, 6144}, {WeightFormat::kBf16, 129280, 5120}};
  for (const Size& s : sizes) {
    if (s.format != WeightFormat::kFp4 && s.in <= 5120) {
      for (const int64_t rows : {1, 8, 16}) Bench(s.format, s.out, s.in, rows, LinearRingSm90, "ring");
    }
    for (const int64_t rows : {1, 8, 16}) Bench(s.format, s.out, s.in, rows, LinearStreamSm90, "stream");
    if (s.format != WeightFormat::kFp4) {
      for (const int64_t rows : {1, 8, 16}) Bench(s.format, s.out, s.in, rows, LinearFewSm90, "few");
    }
    for (const int64_t rows : {8, 16, 32, 64}) Bench(s.format, s.out, s.in, rows, LinearSplitSm90, "split");
    for (const int64_t rows : {64, 128, 700, 8192}) Bench(s.format, s.out, s.in, rows, LinearWideSm90, "wide");
  }
}

}  // namespace
}  // namespace senko::ops

int main() { return senko::cuda::MainOnDevice(senko::ops::All); }
