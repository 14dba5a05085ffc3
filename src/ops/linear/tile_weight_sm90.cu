// Puts stored weights into tiles, one thread for 16 bytes of a unit.
#include <cuda_runtime.h>

#include "base/check.h"
#include "cuda/check.h"
#include "ops/linear/linear_sm90.h"
#include "ops/linear/tiles_sm90.cuh"

namespace senko::ops {
namespace {

using sm90::kTileOutputs;
using sm90::kUnitBytes;

constexpr int kThreads = 256;

struct Source {
  WeightFormat format;
  const uint8_t* data;
  const uint8_t* scale;
  int64_t out, in;
};

// The code of one element; zero beyond the outputs.
__device__ uint32_t Code(const Source& s, int64_t row, int64_t column) {
  if (row >= s.out) return 0;
  if (s.format == WeightFormat::kFp8) return s.data[row * s.in + column];
  if (s.format == WeightFormat::kFp4) {
    const uint8_t pair = s.data[(row * s.in + column) / 2];
    return column % 2 == 0 ? pair & 15u : pair >> 4;
  }
  const uint8_t* p = s.data + 2 * (row * s.in + column);
  return p[0] | static_cast<uint32_t>(p[1]) << 8;
}

// Whether an e4m3 code times 2^(scale - 127) is no multiple of 2^-133, bf16's smallest value.
__device__ bool IsSmall(uint32_t code, uint32_t scale) {
  if (scale > 2) return false;
  const uint32_t exponent = code >> 3 & 15u, mantissa = code & 7u;
  const uint32_t digits = exponent == 0 ? mantissa : (8u + mantissa) << (exponent - 1);  // in 2^-9
  return (digits << scale) % 8 != 0;
}

__global__ void TileKernel(Source s, uint4* tiles, int64_t count, TileFaults* faults) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const int columns = sm90::UnitColumns(s.format);
  const int64_t blocks = s.in / columns;
  const int lane = static_cast<int>(i % 32), warp = static_cast<int>(i / 32 % 4);
  const int64_t block = i / 128 % blocks, tile = i / 128 / blocks;
  const int64_t row = tile * kTileOutputs + warp * 16 + lane / 4;
  const int64_t column = block * columns + lane % 4 * 2;
  // Element `half` of the pair that fragment a_j of `step` holds.
  const auto code = [&](int step, int j, int half) {
    return Code(s, row + j % 2 * 8, column + step * 16 + j / 2 * 8 + half);
  };
  uint32_t words[4] = {};
  uint32_t nan_codes = 0, small_codes = 0;
  uint32_t scale = UINT32_MAX;  // of all 16 codes of e4m3
  if (s.format == WeightFormat::kFp8 && row < s.out) scale = s.scale[row / 32 * (s.in / 32) + column / 32];
  for (int k = 0; k < 4; ++k) {
    for (int j = 0; j < 4; ++j) {
      for (int half = 0; half < 2; ++half) {
        if (s.format == WeightFormat::kFp4) {  // word k is step k
          words[k] |= sm90::Fp4Tiles::Place(code(k, j, half), j, half);
        } else if (s.format == WeightFormat::kFp8) {  // words 2 step and 2 step + 1
          if (j / 2 != k % 2) continue;
          const uint32_t c = code(k / 2, j, half);
          nan_codes += (c & 0x7Fu) == 0x7Fu;
          small_codes += IsSmall(c, scale);
          words[k] |= c << (8 * (j % 2) + 16 * half);
        } else if (j == k) {
          words[k] |= code(0, j, half) << (16 * half);
        }
      }
    }
  }
  if (nan_codes > 0) atomicAdd(&faults->nan_codes, nan_codes);
  if (small_codes > 0) atomicAdd(&faults->small_codes, small_codes);
  tiles[i] = make_uint4(words[0], words[1], words[2], words[3]);
}

__global__ void ScaleKernel(Source s, uint8_t* scales, int64_t count, int max_scale, TileFaults* faults) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t blocks = s.in / 32;
  int64_t row, block;
  if (s.format == WeightFormat::kFp8) {  // one byte for 32 outputs
    row = i / blocks * 32;
    block = i % blocks;
  } else {  // [tile][in / 64][4][8][4]: of output g both blocks, then of g + 8
    const int64_t pair = i / 128 % (s.in / 64), tile = i / 128 / (s.in / 64);
    row = tile * kTileOutputs + i / 32 % 4 * 16 + i / 4 % 8 + i / 2 % 2 * 8;
    block = pair * 2 + i % 2;
  }
  uint8_t code = 0;
  if (row < s.out) code = s.scale[s.format == WeightFormat::kFp8 ? row / 32 * blocks + block : row * blocks + block];
  if (code == 255) {
    atomicAdd(&faults->nan_codes, 1u);
  } else if (code > max_scale) {
    atomicAdd(&faults->large_scales, 1u);
  }
  scales[i] = code;
}

unsigned Blocks(int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

int64_t Tiles(int64_t out) { return (out + kTileOutputs - 1) / kTileOutputs; }

}  // namespace

size_t TileBytes(WeightFormat format, int64_t out, int64_t in) {
  return static_cast<size_t>(Tiles(out) * (in / sm90::UnitColumns(format)) * 4 * kUnitBytes);
}

size_t TileScaleBytes(WeightFormat format, int64_t out, int64_t in) {
  if (format == WeightFormat::kFp8) return static_cast<size_t>(Tiles(out) * 2 * (in / 32));
  if (format == WeightFormat::kFp4) return static_cast<size_t>(Tiles(out) * kTileOutputs * (in / 32));
  return 0;
}

void TileWeight(const uint8_t* data, const uint8_t* scale, const TiledWeight& weight, uint8_t* tiles, uint8_t* scales,
                TileFaults* faults, cudaStream_t stream) {
  SENKO_CHECK(weight.in % 64 == 0 && weight.format != WeightFormat::kF32);
  const Source source{weight.format, data, scale, weight.out, weight.in};
  const int64_t units = static_cast<int64_t>(TileBytes(weight.format, weight.out, weight.in)) / 16;
  TileKernel<<<Blocks(units), kThreads, 0, stream>>>(source, reinterpret_cast<uint4*>(tiles), units, faults);
  SENKO_CUDA(cudaGetLastError());
  const auto scale_bytes = static_cast<int64_t>(TileScaleBytes(weight.format, weight.out, weight.in));
  if (scale_bytes == 0) return;
  const int max_scale = weight.format == WeightFormat::kFp8 ? sm90::Fp8Tiles::kMaxScale : sm90::Fp4Tiles::kMaxScale;
  ScaleKernel<<<Blocks(scale_bytes), kThreads, 0, stream>>>(source, scales, scale_bytes, max_scale, faults);
  SENKO_CUDA(cudaGetLastError());
}

}  // namespace senko::ops
