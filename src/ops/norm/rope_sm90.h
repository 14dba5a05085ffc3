// The rotary table of a step's rows, made on the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace senko::ops {

// RopeTable (norm.h) of the first *rows of positions, all in device memory: table[rows, pairs, 2] = {cos, sin}. The
// float64 cosines and sines are the GPU's, so that a value may be the float next to the host's where the true one lies
// within some 2^-52 of their middle. In both tables of the released model no position up to 1,048,576 has such a value
// (rope_sm90_test.cu).
void RopeTableSm90(const int32_t* rows, int64_t max_rows, const int64_t* positions, const float* inv_freq,
                   int64_t pairs, float* table, cudaStream_t stream);

}  // namespace senko::ops
