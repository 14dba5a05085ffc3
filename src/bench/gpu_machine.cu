// A GPU's rates as the CPU's are measured: of reading memory, the fastest of several passes over much more than its
// cache; of multiplying, what its tensor cores hold up for a while on operands that are already there.
#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "bench/gpu_data.h"
#include "bench/machine.h"
#include "bench/measure.h"
#include "cuda/check.h"
#include "cuda/device.h"
#include "cuda/device_buffer.h"
#include "cuda/ptx.cuh"
#include "ops/linear/wgmma.cuh"

namespace senko::bench {
namespace {

constexpr int kThreads = 512, kLoads = 8;

// Eight loads of 16 bytes in flight per thread; sums are kept so that none can be left out.
__global__ void ReadAll(const uint4* __restrict__ data, size_t count, uint32_t* sink) {
  uint32_t sum = 0;
  const size_t block = size_t{kThreads} * kLoads;
  for (size_t base = blockIdx.x * block; base < count; base += gridDim.x * block) {
    uint4 v[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) v[i] = __ldcs(data + base + static_cast<size_t>(i) * kThreads + threadIdx.x);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) sum |= v[i].x | v[i].y | v[i].z | v[i].w;
  }
  if (sum != 0) *sink = sum;  // never: all is zero
}

constexpr int kProductThreads = 256, kSteps = 4096, kProductRows = 128;
constexpr double kProductFlops = 2.0 * 64 * kProductRows * 16 * kSteps * (kProductThreads / 128);  // of a block

// A warpgroup's 64 x 128 products of 16 columns, operands in registers and shared memory.
__global__ __launch_bounds__(kProductThreads, 2) void MultiplyAll(const uint4* operands, float* sink) {
  __shared__ alignas(1024) uint4 b[kProductRows * 8];  // 128 rows of 64 columns
  for (int i = static_cast<int>(threadIdx.x); i < kProductRows * 8; i += kProductThreads) b[i] = operands[i];
  cuda::FenceAsyncProxy();
  __syncthreads();
  const uint4 mine = operands[threadIdx.x];
  const uint32_t a[4] = {mine.x, mine.y, mine.z, mine.w};
  const uint64_t rows = ops::sm90::SwizzledRows(cuda::SharedAddress(b));
  float c[kProductRows / 2] = {};
  for (int step = 0; step < kSteps; step += 4) {
    ops::sm90::WgmmaFence();
#pragma unroll
    for (int k = 0; k < 4; ++k) ops::sm90::Wgmma<kProductRows>::Run(c, a, rows + static_cast<uint64_t>(2 * k), 1);
    ops::sm90::WgmmaCommit();
    ops::sm90::WgmmaWait<0>();
  }
  float sum = 0;
  for (const float v : c) sum += v;
  if (sum == 1.5f) *sink = sum;
}

template <typename Launch>
std::vector<double> SecondsOf(int runs, const Launch& launch) {
  cudaEvent_t begin = nullptr, end = nullptr;
  SENKO_CUDA(cudaEventCreate(&begin));
  SENKO_CUDA(cudaEventCreate(&end));
  std::vector<double> seconds;
  for (int run = 0; run < runs; ++run) {
    SENKO_CUDA(cudaEventRecord(begin));
    launch();
    SENKO_CUDA(cudaGetLastError());
    SENKO_CUDA(cudaEventRecord(end));
    SENKO_CUDA(cudaEventSynchronize(end));
    float ms = 0;
    SENKO_CUDA(cudaEventElapsedTime(&ms, begin, end));
    seconds.push_back(static_cast<double>(ms) * 1e-3);
  }
  SENKO_CUDA(cudaEventDestroy(begin));
  SENKO_CUDA(cudaEventDestroy(end));
  return seconds;
}

}  // namespace

Machine MeasureGpu() {
  const cuda::Device device = cuda::UseDevice(0);
  const size_t count = (size_t{2} << 30) / sizeof(uint4);  // a multiple of a block's loads
  const cuda::DeviceBuffer<uint4> data(count);
  const cuda::DeviceBuffer<uint32_t> sink(1);
  SENKO_CUDA(cudaMemset(data.data(), 0, data.bytes()));
  const auto blocks = static_cast<unsigned>(device.multiprocessors);
  const std::vector<double> reads =
      SecondsOf(8, [&] { ReadAll<<<4 * blocks, kThreads>>>(data.data(), count, sink.data()); });
  GpuData random;
  const auto* operands = reinterpret_cast<const uint4*>(random.Rows(kProductRows * 64));
  auto* sum = random.Zeros<float>(1);
  constexpr unsigned kRounds = 16;  // 2.5 ms
  // Behind the first of them the clock is what power allows.
  std::vector<double> products =
      SecondsOf(24, [&] { MultiplyAll<<<2 * kRounds * blocks, kProductThreads>>>(operands, sum); });
  products.erase(products.begin(), products.begin() + 8);
  Machine machine;
  machine.name = device.name;
  machine.gpu = true;
  machine.read_bytes_per_second = static_cast<double>(data.bytes()) / *std::min_element(reads.begin(), reads.end());
  machine.bf16_flops_per_second = 2 * kRounds * blocks * kProductFlops / Median(products);
  return machine;
}

}  // namespace senko::bench
