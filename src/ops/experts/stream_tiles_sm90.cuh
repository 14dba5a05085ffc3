// The product for up to 8 rows of one expert: two tiles of 64 outputs, all of K, by 8 warps that stream 16 outputs'
// units each through registers into mma.sync. Chunks of K are summed from zero and added up in order (linear_sm90.h).
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cuda/ptx.cuh"
#include "ops/linear/tiles_sm90.cuh"
#include "ops/linear/wide_sm90.cuh"

namespace senko::ops::sm90 {

inline constexpr int kStreamThreads = 256;
inline constexpr int kStreamRows = 8;
inline constexpr int kStreamPitch =
    1024 + 8;  // elements of a staged row: a chunk; odd in 16 bytes, so without bank conflicts
inline constexpr int kStreamStageBytes = kStreamRows * kStreamPitch * 2;
inline constexpr int kStreamSharedBytes = 2 * kStreamStageBytes;  // two chunks

// row_of(r): as WideProduce's. total: of the warp's outputs, rows 2 t and 2 t + 1: (g, g, g + 8, g + 8).
template <typename Tiles, typename RowOf>
__device__ void StreamProduct(const WideWeights& w, const __nv_bfloat16* x, const RowOf& row_of, uint8_t* shared,
                              float (&total)[4]) {
  constexpr bool kIsFp8 = std::is_same_v<Tiles, Fp8Tiles>;
  constexpr int kDepth = kIsFp8 ? 8 : 4;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, tile = warp / 4;
  const int units = static_cast<int>(w.in / Tiles::kColumns), chunk_units = w.chunk_columns / Tiles::kColumns;
  const int chunks = (units + chunk_units - 1) / chunk_units;
  const bool works = tile < w.num_tiles;
  const uint8_t* weights = w.tiles + (int64_t{tile} * units * 4 + warp % 4) * kUnitBytes + lane * 16;
  const uint32_t* fp4_scales =
      reinterpret_cast<const uint32_t*>(w.scales) + (int64_t{tile} * units * 4 + warp % 4) * 8 + lane / 4;
  const uint8_t* fp8_scales = w.scales + (tile * 2 + warp % 4 / 2) * int64_t{units};

  uint4 ring[kDepth];
  uint32_t ring_scales[kDepth];
  const auto load = [&](int chunk, int i, int slot) {
    const int unit = chunk * chunk_units + i;
    if (i >= chunk_units || unit >= units || !works) return;
    ring[slot] = cuda::LoadStreaming(weights + int64_t{unit} * 4 * kUnitBytes);
    ring_scales[slot] = kIsFp8 ? __ldg(fp8_scales + unit) : __ldg(fp4_scales + int64_t{unit} * 32);
  };
  const int padded = (chunk_units + kDepth - 1) / kDepth * kDepth;
#pragma unroll
  for (int i = 0; i < kDepth; ++i) load(0, i, i);

  // One warp a row.
  const uint32_t stage = cuda::SharedAddress(shared), from = row_of(warp);
  const auto bring = [&](int chunk) {
    const int64_t begin = int64_t{chunk} * w.chunk_columns;
    const int pieces = static_cast<int>(min(int64_t{w.chunk_columns}, w.in - begin)) / 8;
    const uint32_t to = stage + static_cast<uint32_t>(chunk % 2 * kStreamStageBytes + warp * kStreamPitch * 2);
    const auto* at = reinterpret_cast<const uint8_t*>(x + begin) + (from != kNoRow ? int64_t{from} * 16 : 0);
    for (int i = lane; i < pieces; i += 32)
      cuda::CopyAsync16(to + static_cast<uint32_t>(i * 16), at + i * 16, from != kNoRow);
    cuda::CommitCopies();
  };
  bring(0);
#pragma unroll
  for (float& v : total) v = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    if (chunk + 1 < chunks) {
      bring(chunk + 1);
      cuda::WaitForCopies<1>();
    } else {
      cuda::WaitForCopies<0>();
    }
    __syncthreads();
    const uint32_t x_lane =
        stage + static_cast<uint32_t>(chunk % 2 * kStreamStageBytes + (lane % 8 * kStreamPitch + lane / 8 * 8) * 2);
    float sums[4] = {};
    for (int base = 0; base < padded; base += kDepth) {
#pragma unroll
      for (int k = 0; k < kDepth; ++k) {
        const int i = base + k;
        if (i < chunk_units && chunk * chunk_units + i < units && works) {
          uint32_t a[Tiles::kSteps][4];
#pragma unroll
          for (int step = 0; step < Tiles::kSteps; ++step) {
            if constexpr (kIsFp8) {
              Tiles::Expand(ring[k], step, Tiles::Multiplier(ring_scales[k]), a[step]);
            } else {
              const uint32_t two = ring_scales[k] >> (8 * (step / 2));
              Tiles::Expand((&ring[k].x)[step], Tiles::Multiplier(two & 255u), Tiles::Multiplier(two >> 16 & 255u),
                            a[step]);
            }
          }
#pragma unroll
          for (int pair = 0; pair < Tiles::kSteps / 2; ++pair) {
            uint32_t b[4];
            cuda::LoadMatrices(x_lane + static_cast<uint32_t>((i * Tiles::kColumns + pair * 32) * 2), b);
            cuda::MultiplyAdd16x8x16(sums, a[2 * pair], b[0], b[1]);
            cuda::MultiplyAdd16x8x16(sums, a[2 * pair + 1], b[2], b[3]);
          }
        }
        const bool next_chunk = i + kDepth >= padded;
        load(next_chunk ? chunk + 1 : chunk, next_chunk ? i + kDepth - padded : i + kDepth, k);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) total[i] = __fadd_rn(total[i], sums[i]);
    __syncthreads();
  }
}

}  // namespace senko::ops::sm90
