#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>

#include "cuda/check.h"
#include "runtime/cuda/dummy_weights.h"

namespace senko::runtime {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocks = 132 * 16;

__device__ uint32_t Mix(uint64_t at, uint32_t seed) {
  uint32_t v = static_cast<uint32_t>(at) * 2654435761u + static_cast<uint32_t>(at >> 32) + seed * 0x9E3779B9u;
  v ^= v >> 15, v *= 0x85EBCA77u, v ^= v >> 13, v *= 0xC2B2AE3Du;
  return v ^ v >> 16;
}

// kKind 1: e4m3 between 1 and 2 of either sign; 2: any e2m1; 3: bf16 between 1 and 2, times `scale`, of either sign.
template <int kKind>
__global__ void CodesKernel(uint32_t* p, size_t words, float scale, uint32_t seed) {
  for (size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x; i < words; i += size_t{gridDim.x} * kThreads) {
    const uint32_t v = Mix(i, seed);
    if constexpr (kKind == 1) {
      p[i] = (v & 0x87878787u) | 0x38383838u;
    } else if constexpr (kKind == 2) {
      p[i] = v;
    } else {
      const auto value = [&](uint32_t half) {
        const float f = __uint_as_float(0x3F800000u | (half & 0x7Fu) << 16) * scale;
        return __bfloat162float(__float2bfloat16_rn((half & 0x8000u) != 0 ? -f : f));
      };
      p[i] = (__float_as_uint(value(v & 0xFFFFu)) >> 16) | (__float_as_uint(value(v >> 16)) & 0xFFFF0000u);
    }
  }
}

}  // namespace

void FillDummyTiles(const ops::TiledWeight& weight, uint8_t* tiles, uint8_t* scales, uint32_t seed,
                    cudaStream_t stream) {
  const size_t words = ops::TileBytes(weight.format, weight.out, weight.in) / 4;
  auto* p = reinterpret_cast<uint32_t*>(tiles);
  const double rms = 1 / std::sqrt(static_cast<double>(weight.in));
  if (weight.format == ops::WeightFormat::kBf16) {
    CodesKernel<3><<<kBlocks, kThreads, 0, stream>>>(p, words, static_cast<float>(rms / 1.5), seed);
  } else if (weight.format == ops::WeightFormat::kFp8) {
    CodesKernel<1><<<kBlocks, kThreads, 0, stream>>>(p, words, 0, seed);
  } else {
    CodesKernel<2><<<kBlocks, kThreads, 0, stream>>>(p, words, 0, seed);
  }
  SENKO_CUDA(cudaGetLastError());
  const double of_codes = weight.format == ops::WeightFormat::kFp8 ? 1.5 : 2.7;
  const int scale = 127 + static_cast<int>(std::lround(std::log2(rms / of_codes)));
  const size_t scale_bytes = ops::TileScaleBytes(weight.format, weight.out, weight.in);
  if (scale_bytes > 0) SENKO_CUDA(cudaMemsetAsync(scales, scale, scale_bytes, stream));
}

void FillDummyBf16(uint8_t* to, size_t count, float rms, uint32_t seed, cudaStream_t stream) {
  CodesKernel<3><<<kBlocks, kThreads, 0, stream>>>(reinterpret_cast<uint32_t*>(to), count / 2, rms / 1.5f, seed);
  SENKO_CUDA(cudaGetLastError());
}

}  // namespace senko::runtime
