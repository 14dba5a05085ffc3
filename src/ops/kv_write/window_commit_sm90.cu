// Eight rows of a sequence and layer are one warp's item; all sequences' first items come before their second ones, so
// that a decode step of many sequences and a long prompt of one both spread over the GPU. Rows lie one after another in
// staging and ring alike, so an item is one copy with one wrap. Bounded by memory.
#include <cuda_runtime.h>

#include <algorithm>

#include "base/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "ops/kv_write/kv_write_sm90.h"

namespace senko::ops {
namespace {

constexpr int kItemRows = 8;
constexpr int kWarps = 8;  // a block
constexpr uint32_t kUnroll = 3;
constexpr int64_t kMostBlocks = 1056;  // eight on each of an H200's 132 multiprocessors

__global__ __launch_bounds__(32 * kWarps, 8) void WindowCommitKernel(const WindowCommitSm90Params p) {
  cuda::WaitForPrevious();
  const int num_sequences = *p.num_sequences;
  const auto ring_rows = static_cast<uint32_t>(p.ring_rows);
  const int parts = static_cast<int>((ring_rows + kItemRows - 1) / kItemRows);
  const auto row_pieces = static_cast<uint32_t>(p.row_stride / 16), ring_pieces = ring_rows * row_pieces;
  const uint8_t* staging = p.staging + blockIdx.y * p.staging_stride;
  const int64_t ring_offset = p.ring_offset + blockIdx.y * p.ring_stride;
  int sequence = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32), part = 0;
  for (;;) {
    // Item `sequence + part * num_sequences`.
    while (sequence >= num_sequences && part < parts) sequence -= num_sequences, ++part;
    if (part >= parts) break;
    const SequenceKv& s = p.sequences[sequence];
    const int count = p.row_counts[sequence];
    const int first = max(count - static_cast<int>(ring_rows), 0) + part * kItemRows;
    if (first < count) {
      const uint32_t pieces = static_cast<uint32_t>(min(count - first, kItemRows)) * row_pieces;
      // Positions are below 2^32.
      const uint32_t begin =
          (static_cast<uint32_t>(s.first_new) + static_cast<uint32_t>(first)) % ring_rows * row_pieces;
      const auto* from = reinterpret_cast<const uint4*>(staging + (s.staging_begin + first) * p.row_stride);
      auto* ring = reinterpret_cast<uint4*>(s.slot + ring_offset);
      for (uint32_t piece = threadIdx.x % 32; piece < pieces; piece += 32 * kUnroll) {
        uint4 v[kUnroll];
#pragma unroll
        for (uint32_t i = 0; i < kUnroll; ++i) {
          if (piece + 32 * i < pieces) v[i] = from[piece + 32 * i];
        }
#pragma unroll
        for (uint32_t i = 0; i < kUnroll; ++i) {
          const uint32_t at = begin + piece + 32 * i;
          if (piece + 32 * i < pieces) ring[at < ring_pieces ? at : at - ring_pieces] = v[i];
        }
      }
    }
    sequence += static_cast<int>(gridDim.x) * kWarps;
  }
}

}  // namespace

void WindowCommitSm90(const WindowCommitSm90Params& p, cudaStream_t stream) {
  if (p.max_sequences == 0 || p.num_layers == 0) return;
  SENKO_CHECK(p.ring_rows >= 1 && p.row_stride > 0 && p.row_stride % 16 == 0);
  SENKO_CHECK(p.ring_rows * p.row_stride < (int64_t{1} << 31));
  SENKO_CHECK(p.ring_offset % 16 == 0 && p.ring_stride % 16 == 0 && p.staging_stride % 16 == 0);
  const int64_t items = p.max_sequences * ((p.ring_rows + kItemRows - 1) / kItemRows);
  const int64_t wanted = (items + kWarps - 1) / kWarps, most = std::max<int64_t>(1, kMostBlocks / p.num_layers);
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>(std::min(wanted, most)), static_cast<unsigned>(p.num_layers));
  launch.block = dim3(32 * kWarps);
  launch.stream = stream;
  cuda::Start(launch, WindowCommitKernel, p);
}

}  // namespace senko::ops
