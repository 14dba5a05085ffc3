// Dot products in float32 of float rows with weights in tiles, for kernels without rounding points (--numerics float):
// plain arithmetic, no tensor cores; what the tiles hold is exact in float32.
//
// The canonical order of a sum: lane t of four takes columns 2t, 2t + 1, 2t + 8 and 2t + 9 of every 16, ascending, by
// fused multiply-adds, from zero every kFloatChunk columns; these parts are added in order, then the four lanes in a
// butterfly.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "ops/linear/tiles_sm90.cuh"

namespace senko::ops::sm90 {

inline constexpr int kFloatChunk = 1024;
inline constexpr int kFloatRows = 8;       // of a call
inline constexpr int kFloatThreads = 128;  // four warps, 16 outputs of a tile each

__device__ inline float2 PairToFloats(uint32_t pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u));
}
__device__ inline float2 LoadTwo(const float* p) { return *reinterpret_cast<const float2*>(p); }
__device__ inline float2 LoadTwo(const __nv_bfloat16* p) { return PairToFloats(*reinterpret_cast<const uint32_t*>(p)); }

// A lane's column blocks of a tile, as fragments of 16 columns.
template <WeightFormat kFormat>
class TileLane {
 public:
  static constexpr int kColumns = UnitColumns(kFormat);
  static constexpr int kSteps = kColumns / 16;

  __device__ TileLane(const uint8_t* tiles, const uint8_t* scales, int64_t tile, int64_t in) {
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4, lane = static_cast<int>(threadIdx.x) % 32;
    units_ = reinterpret_cast<const uint4*>(tiles) + tile * (in / kColumns) * 128 + warp * 32 + lane;
    if constexpr (kFormat == WeightFormat::kFp8) scales_ = scales + (tile * 2 + warp / 2) * (in / 32);
    if constexpr (kFormat == WeightFormat::kFp4) scales_ = scales + (tile * (in / 64) * 32 + warp * 8 + lane / 4) * 4;
  }
  __device__ void Load(int64_t block, uint32_t (&a)[kSteps][4]) const {
    const uint4 unit = units_[block * 128];
    if constexpr (kFormat == WeightFormat::kBf16) {
      a[0][0] = unit.x, a[0][1] = unit.y, a[0][2] = unit.z, a[0][3] = unit.w;
    } else if constexpr (kFormat == WeightFormat::kFp8) {
      const uint32_t multiplier = Fp8Tiles::Multiplier(scales_[block]);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) Fp8Tiles::Expand(unit, step, multiplier, a[step]);
    } else {
      const uint32_t four = *reinterpret_cast<const uint32_t*>(scales_ + block * 128);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        Fp4Tiles::Expand((&unit.x)[step], Fp4Tiles::Multiplier(four, step / 2),
                         Fp4Tiles::Multiplier(four, step / 2 + 2), a[step]);
      }
    }
  }

 private:
  const uint4* units_;
  const uint8_t* scales_ = nullptr;
};

// sums[o][r]: outputs g and g + 8 of this warp's 16 (g = lane / 4) of a tile, times row x[r]; in all four lanes.
template <WeightFormat kFormat, typename X>
__device__ void DotTile(const uint8_t* tiles, const uint8_t* scales, int64_t tile, int64_t in,
                        const X* const (&x)[kFloatRows], float (&sums)[2][kFloatRows]) {
  using Lane = TileLane<kFormat>;
  const Lane weight(tiles, scales, tile, in);
  const int64_t blocks = in / Lane::kColumns;
  const int first = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int r = 0; r < kFloatRows; ++r) sums[0][r] = sums[1][r] = 0;
  for (int64_t begin = 0; begin < blocks; begin += kFloatChunk / Lane::kColumns) {
    float part[2][kFloatRows] = {};
    const int64_t end = min(begin + kFloatChunk / Lane::kColumns, blocks);
    for (int64_t block = begin; block < end; ++block) {
      uint32_t a[Lane::kSteps][4];
      weight.Load(block, a);
#pragma unroll
      for (int step = 0; step < Lane::kSteps; ++step) {
        const int64_t column = block * Lane::kColumns + step * 16 + first;
        const float2 low[2] = {PairToFloats(a[step][0]), PairToFloats(a[step][1])};
        const float2 high[2] = {PairToFloats(a[step][2]), PairToFloats(a[step][3])};
#pragma unroll
        for (int r = 0; r < kFloatRows; ++r) {
          const float2 x_low = LoadTwo(x[r] + column), x_high = LoadTwo(x[r] + column + 8);
#pragma unroll
          for (int o = 0; o < 2; ++o) {
            part[o][r] = __fmaf_rn(low[o].x, x_low.x, part[o][r]);
            part[o][r] = __fmaf_rn(low[o].y, x_low.y, part[o][r]);
            part[o][r] = __fmaf_rn(high[o].x, x_high.x, part[o][r]);
            part[o][r] = __fmaf_rn(high[o].y, x_high.y, part[o][r]);
          }
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kFloatRows; ++r) {
#pragma unroll
      for (int o = 0; o < 2; ++o) sums[o][r] = __fadd_rn(sums[o][r], part[o][r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kFloatRows; ++r) {
#pragma unroll
    for (int o = 0; o < 2; ++o) {
      sums[o][r] = __fadd_rn(sums[o][r], __shfl_xor_sync(0xFFFFFFFFu, sums[o][r], 1));
      sums[o][r] = __fadd_rn(sums[o][r], __shfl_xor_sync(0xFFFFFFFFu, sums[o][r], 2));
    }
  }
}

// Calls store(o, r, output) once for each of a tile's outputs and each of `rows` rows, o and r being constants.
template <typename Store>
__device__ void ForEachSum(int64_t tile, int rows, const Store& store) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int r = 0; r < kFloatRows; ++r) {
    if (r >= rows || r % 4 != lane % 4) continue;
#pragma unroll
    for (int o = 0; o < 2; ++o) store(o, r, tile * kTileOutputs + warp * 16 + o * 8 + lane / 4);
  }
}

}  // namespace senko::ops::sm90
