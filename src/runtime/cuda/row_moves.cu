#include <cuda_runtime.h>

#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "runtime/cuda/row_moves.h"

namespace senko::runtime {
namespace {

constexpr int kThreads = 256;

__global__ __launch_bounds__(kThreads) void EmbedKernel(const EmbedParams p) {
  cuda::WaitForPrevious();
  cuda::LetNextBegin();
  const int64_t row = blockIdx.x;
  if (row >= *p.rows) return;
  const auto* from = reinterpret_cast<const uint4*>(p.embed + int64_t{p.tokens[row]} * p.hidden * 2);
  auto* to = reinterpret_cast<uint4*>(p.streams + row * 4 * p.hidden);
  const int64_t pieces = p.hidden / 8;
  for (int64_t i = threadIdx.x; i < pieces; i += kThreads) {
    const uint4 v = from[i];
#pragma unroll
    for (int s = 0; s < 4; ++s) to[s * pieces + i] = v;
  }
  if (threadIdx.x < 4) p.pre[row * 4 + threadIdx.x] = threadIdx.x == 0 ? 1.0f : 0.0f;
}

__global__ __launch_bounds__(kThreads) void GatherKernel(const GatherRowsParams p) {
  cuda::WaitForPrevious();
  cuda::LetNextBegin();
  const int64_t row = blockIdx.x;
  if (row >= *p.rows) return;
  const int64_t source = p.source[row], pieces = p.row_bytes / 16;
  const auto* from = static_cast<const uint4*>(p.from) + source * pieces;
  auto* to = static_cast<uint4*>(p.to) + row * pieces;
  for (int64_t i = threadIdx.x; i < pieces; i += kThreads) to[i] = from[i];
  if (p.pre != nullptr && threadIdx.x < 4) p.pre_to[row * 4 + threadIdx.x] = p.pre[source * 4 + threadIdx.x];
}

}  // namespace

void EmbedRows(const EmbedParams& p, cudaStream_t stream) {
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>(p.max_rows));
  launch.block = dim3(kThreads);
  launch.stream = stream;
  cuda::Start(launch, EmbedKernel, p);
}

void GatherRows(const GatherRowsParams& p, cudaStream_t stream) {
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>(p.max_rows));
  launch.block = dim3(kThreads);
  launch.stream = stream;
  cuda::Start(launch, GatherKernel, p);
}

}  // namespace senko::runtime
