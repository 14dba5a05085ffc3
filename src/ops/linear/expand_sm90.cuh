// From a stage of shared memory to operand A.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "ops/linear/tiles_sm90.cuh"

namespace senko::ops::sm90 {

// The fragments of 32 columns, two steps, of codes in shared memory. `units`: where this lane's 16 bytes of a block of
// 64 columns begin; `half`: which 32 of them. `fp8_scale`: of these; `fp4_scales`: the lane's four of the block.
template <typename Tiles>
__device__ inline void ExpandShared(uint32_t units, uint32_t scales, uint32_t fp8_scale, int half,
                                    uint32_t (&a)[2][4]) {
  uint4 unit;
  const auto read = [&](uint32_t from) {
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(unit.x), "=r"(unit.y), "=r"(unit.z), "=r"(unit.w)
                 : "r"(from));
  };
  if constexpr (std::is_same_v<Tiles, sm90::Fp8Tiles>) {
    read(units + static_cast<uint32_t>(half * 4 * kUnitBytes));
    const uint32_t multiplier = Tiles::Multiplier(fp8_scale);
    Tiles::Expand(unit, 0, multiplier, a[0]);
    Tiles::Expand(unit, 1, multiplier, a[1]);
  } else if constexpr (std::is_same_v<Tiles, sm90::Fp4Tiles>) {
    uint2 words;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];"
                 : "=r"(words.x), "=r"(words.y)
                 : "r"(units + static_cast<uint32_t>(half * 8)));
    const uint32_t of_g = Tiles::Multiplier(scales, half), of_g8 = Tiles::Multiplier(scales, half + 2);
    Tiles::Expand(words.x, of_g, of_g8, a[0]);
    Tiles::Expand(words.y, of_g, of_g8, a[1]);
  } else {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      read(units + static_cast<uint32_t>((half * 2 + step) * 4 * kUnitBytes));
      a[step][0] = unit.x, a[step][1] = unit.y, a[step][2] = unit.z, a[step][3] = unit.w;
    }
  }
}

}  // namespace senko::ops::sm90
