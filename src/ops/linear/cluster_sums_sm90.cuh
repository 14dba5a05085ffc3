// The chunks' sums of some outputs, one block of a cluster each, put together in their order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/ptx.cuh"
#include "numerics/fp8_lanes.cuh"

namespace senko::ops::sm90 {

// Where a linear's outputs go.
struct Outputs {
  int64_t out;
  bool round;  // as activations
  __nv_bfloat16* y_bf16;
  float* y_float;
  int64_t y_stride;

  // A warp has 32 neighbouring outputs of a row where they are rounded.
  __device__ void Store(int64_t row, int64_t column, float sum) const {
    const int64_t to = row * y_stride + column;
    if (y_bf16 == nullptr) {
      y_float[to] = sum;
      return;
    }
    if (round) sum = numerics::RoundFp8OverWarp(__bfloat162float(__float2bfloat16_rn(sum)));
    y_bf16[to] = __float2bfloat16_rn(sum);
  }
};

// Row r of kOutputs outputs is block r % chunks' to add: every block puts its sums there, so that after one barrier of
// the cluster nobody reads from afar, and blocks without a row end.
template <int kRows, int kOutputs, int kThreads>
struct ClusterSums {
  // Floats that `chunks` blocks need, each.
  static constexpr int Floats(int chunks) { return (kRows + chunks - 1) * kOutputs; }

  float* at;  // shared: [chunk][row / chunks][output], no other use of it
  int chunk, chunks;

  // Once, by all threads, before Put: that all blocks have begun.
  __device__ void Begin() const { cuda::ClusterArriveRelaxed(); }
  __device__ void MayPut() const { cuda::ClusterWait(); }
  __device__ int RowsEach() const { return (kRows + chunks - 1) / chunks; }
  __device__ void Put(int row, int output, float sum) const {
    const int slot = row / chunks;
    *cuda::InBlock(at + (chunk * RowsEach() + slot) * kOutputs + output, static_cast<uint32_t>(row - slot * chunks)) =
        sum;
  }
  // All threads of all blocks, after their Puts.
  __device__ void Finish(const Outputs& to, int64_t first_row, int rows, int64_t first_column) const {
    cuda::ClusterArrive();
    cuda::ClusterWait();
    const int mine = (rows - chunk + chunks - 1) / chunks, step = RowsEach() * kOutputs;
    for (int i = static_cast<int>(threadIdx.x); i < mine * kOutputs; i += kThreads) {
      const int64_t column = first_column + i % kOutputs;
      if (column >= to.out) continue;
      float sum = at[i];
#pragma unroll 8
      for (int c = 1; c < chunks; ++c) sum = __fadd_rn(sum, at[c * step + i]);
      to.Store(first_row + chunk + i / kOutputs * chunks, column, sum);
    }
  }
};

}  // namespace senko::ops::sm90
