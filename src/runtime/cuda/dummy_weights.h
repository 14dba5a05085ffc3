// Random weights made on the GPU, for measuring without a checkpoint: finite, and of a size that keeps activations near
// one.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "ops/linear/linear_sm90.h"

namespace senko::runtime {

void FillDummyTiles(const ops::TiledWeight& weight, uint8_t* tiles, uint8_t* scales, uint32_t seed,
                    cudaStream_t stream);
// bf16 values of this root mean square.
void FillDummyBf16(uint8_t* to, size_t count, float rms, uint32_t seed, cudaStream_t stream);

}  // namespace senko::runtime
