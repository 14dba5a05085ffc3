#include <cuda_runtime.h>

#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "numerics/bf16_lanes.cuh"
#include "runtime/cuda/row_moves.h"

namespace senko::runtime {
namespace {

constexpr int kThreads = 256;

__device__ void StoreEight(__nv_bfloat16* p, const uint4& codes) { *reinterpret_cast<uint4*>(p) = codes; }
__device__ void StoreEight(float* p, const uint4& codes) {
  float x[8];
  numerics::UnpackBf16x8(codes, x);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    reinterpret_cast<float4*>(p)[i] = make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
  }
}

template <typename Value>
__global__ __launch_bounds__(kThreads) void EmbedKernel(const BasicEmbedParams<Value> p) {
  cuda::WaitForPrevious();
  cuda::LetNextBegin();
  const int64_t row = blockIdx.x;
  if (row >= *p.rows) return;
  const auto* from = reinterpret_cast<const uint4*>(p.embed + int64_t{p.tokens[row]} * p.hidden * 2);
  Value* to = p.streams + row * p.num_streams * p.hidden;
  for (int64_t i = threadIdx.x; i < p.hidden / 8; i += kThreads) {
    const uint4 v = from[i];
    for (int64_t s = 0; s < p.num_streams; ++s) StoreEight(to + s * p.hidden + i * 8, v);
  }
  if (threadIdx.x < p.num_streams) p.pre[row * p.num_streams + threadIdx.x] = threadIdx.x == 0 ? 1.0f : 0.0f;
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
  if (p.pre == nullptr || threadIdx.x >= p.pre_width) return;
  p.pre_to[row * p.pre_width + threadIdx.x] = p.pre[source * p.pre_width + threadIdx.x];
}

template <typename Value>
void StartEmbed(const BasicEmbedParams<Value>& p, cudaStream_t stream) {
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>(p.max_rows));
  launch.block = dim3(kThreads);
  launch.stream = stream;
  cuda::Start(launch, EmbedKernel<Value>, p);
}

}  // namespace

void EmbedRows(const BasicEmbedParams<__nv_bfloat16>& p, cudaStream_t stream) { StartEmbed(p, stream); }
void EmbedRows(const BasicEmbedParams<float>& p, cudaStream_t stream) { StartEmbed(p, stream); }

void GatherRows(const GatherRowsParams& p, cudaStream_t stream) {
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>(p.max_rows));
  launch.block = dim3(kThreads);
  launch.stream = stream;
  cuda::Start(launch, GatherKernel, p);
}

}  // namespace senko::runtime
