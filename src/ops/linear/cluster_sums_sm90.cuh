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

// Row r of kOutputs outputs is block r % chunks' to add: every block stores its sums there, and the bytes are counted
// by a barrier of that block. A barrier of the whole cluster would first wait for all that its threads have written.
template <int kRows, int kOutputs>
struct ClusterSums {
  // Shared memory that `chunks` blocks need, each.
  static constexpr int Bytes(int chunks) { return 16 + (kRows + chunks - 1) * kOutputs * 4; }

  uint8_t* at;  // shared, 16-byte aligned, no other use of it: a barrier, then [chunk][row / chunks][output]
  uint32_t address;
  int chunk, chunks, inverse;
  int first_block;  // of the cluster: the one with the first chunk

  __device__ ClusterSums(uint8_t* shared, int of_chunk, int of_chunks, int of_first_block = 0)
      : at(shared),
        address(cuda::SharedAddress(shared)),
        chunk(of_chunk),
        chunks(of_chunks),
        inverse((1 << 16) / of_chunks + 1),
        first_block(of_first_block) {}

  // Once, by all threads, before Put: that all blocks have begun.
  __device__ void Begin() const {
    if (threadIdx.x == 0) {
      cuda::InitBarrier(address, 1);
      cuda::FenceBarrierInit();
    }
    __syncwarp();
    cuda::ClusterArriveRelaxed();
  }
  __device__ void MayPut() const { cuda::ClusterWait(); }
  __device__ int ByChunks(int rows) const { return rows * inverse >> 16; }  // rows / chunks, of few rows
  __device__ int RowsEach() const { return ByChunks(kRows + chunks - 1); }
  __device__ void Put(int row, int output, float sum) const {
    const int slot = ByChunks(row);
    const auto block = static_cast<uint32_t>(first_block + row - slot * chunks);
    const int place = (chunk * RowsEach() + slot) * kOutputs + output;
    if (chunks == 1) {  // no cluster to count stores in
      reinterpret_cast<float*>(at + 16)[place] = sum;
      return;
    }
    cuda::StoreCounting(cuda::AddressInBlock(address + 16 + static_cast<uint32_t>(place) * 4, block), sum,
                        cuda::AddressInBlock(address, block));
  }
  // All threads of all blocks, after their Puts, which were of all outputs of `rows` rows. Gives how many of them were
  // this block's.
  template <int kThreads>
  __device__ int Finish(const Outputs& to, int64_t first_row, int rows, int64_t first_column) const {
    if (rows <= chunk) return 0;
    const int mine = ByChunks(rows - chunk + chunks - 1), step = RowsEach() * kOutputs;
    if (chunks == 1) {
      __syncthreads();
    } else {
      if (threadIdx.x == 0) cuda::ArriveExpecting(address, static_cast<uint32_t>(mine * kOutputs * chunks * 4));
      cuda::WaitBarrier(address, 0);
    }
    const auto* sums = reinterpret_cast<const float*>(at + 16);
    for (int i = static_cast<int>(threadIdx.x); i < mine * kOutputs; i += kThreads) {
      const int64_t column = first_column + i % kOutputs;
      if (column >= to.out) continue;
      float sum = sums[i];
#pragma unroll 8
      for (int c = 1; c < chunks; ++c) sum = __fadd_rn(sum, sums[c * step + i]);
      to.Store(first_row + chunk + i / kOutputs * chunks, column, sum);
    }
    return mine;
  }
};

}  // namespace senko::ops::sm90
