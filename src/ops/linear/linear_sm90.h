// y = x W^T on Hopper: bf16 activations, weights in their stored formats, permuted once for the tensor cores.
//
// Canonical arithmetic (linear/README.md): K is summed in LinearChunks(in) chunks, each from zero by tensor-core steps
// of 16 columns in ascending order, the chunks added in order in float32. Every kernel here does exactly that, so an
// output has the same bits whatever the number of rows. (They are not the CPU's bits.)
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "ops/linear/linear.h"

namespace senko::ops {

// Canonical chunks of K: about 1,024 columns each, a multiple of 64.
inline constexpr int64_t LinearChunks(int64_t in) { return (in + kChunk - 1) / kChunk; }
inline constexpr int64_t LinearChunkColumns(int64_t in) {
  return (in / 64 + (in % 64 != 0) + LinearChunks(in) - 1) / LinearChunks(in) * 64;
}

// A weight in device memory, in tiles of 64 outputs (tiles_sm90.cuh). `in` is a multiple of 64; outputs are padded with
// zeros to a multiple of 64.
struct TiledWeight {
  WeightFormat format = WeightFormat::kFp8;  // kF32 has no tiles
  int64_t out = 0;
  int64_t in = 0;
  const uint8_t* tiles = nullptr;   // 256-byte aligned
  const uint8_t* scales = nullptr;  // kFp8: ue8m0 [tile][2][in / 32]; kFp4: [tile][in / 64][4][8][4]
};

size_t TileBytes(WeightFormat format, int64_t out, int64_t in);
size_t TileScaleBytes(WeightFormat format, int64_t out, int64_t in);

// What no kernel could compute exactly, counted while a weight is put into tiles.
struct TileFaults {
  uint32_t nan_codes = 0;     // of e4m3, or a scale of 255
  uint32_t large_scales = 0;  // beyond what a bf16 multiplier holds: 2^7 for kFp8, 2^1 for kFp4
  uint32_t small_codes = 0;   // of e4m3, which their scale, below 2^-124, makes no multiple of bf16's smallest value
};

// `data` and `scale`: device memory, as the checkpoint stores them, of outputs [0, out). Writes tiles and scales of
// `weight`, and adds to *faults (device memory). To be waited for before a kernel uses them: those read weights before
// they wait for the kernel ahead.
void TileWeight(const uint8_t* data, const uint8_t* scale, const TiledWeight& weight, uint8_t* tiles, uint8_t* scales,
                TileFaults* faults, cudaStream_t stream);

struct LinearSm90Params {
  const int32_t* rows = nullptr;     // device: how many rows there are
  int64_t max_rows = 0;              // *rows is never more; picks the kernel
  const __nv_bfloat16* x = nullptr;  // [rows, in], row stride x_stride elements, rows 16-byte aligned
  int64_t x_stride = 0;
  TiledWeight weight;
  // Outputs of a group, a multiple of 64 that divides `out`: group g reads the columns of x from g * in on. 0: one
  // group.
  int64_t group_out = 0;
  __nv_bfloat16* y_bf16 = nullptr;  // [rows, out] rounded, 16-byte aligned, or
  float* y_float = nullptr;         // as summed, or
  float* y_chunks = nullptr;        // [LinearChunks(in), max_rows, out]: the chunks' sums, LinearChunksSm90 only
  int64_t y_stride = 0;             // elements; not of y_chunks
  // y_bf16 is rounded further, as activations (qdq_fp8_32 of 32 outputs of a row): `out` is a multiple of 64, y_stride
  // of 8.
  bool round_activations = false;
};

// Tiles of 64 outputs of one group.
inline int64_t LinearGroupTiles(const LinearSm90Params& p) {
  return ((p.group_out > 0 ? p.group_out : p.weight.out) + 63) / 64;
}
// What all kernels need, or SENKO_CHECK fails.
void CheckLinearSm90(const LinearSm90Params& p);

// Five kernels, the same bits. Up to 16 rows: weights streamed through registers into mma.sync.
void LinearStreamSm90(const LinearSm90Params& p, cudaStream_t stream);
// Many outputs, up to 16 rows of kFp8 or kBf16 in one group, not rounded as activations: blocks that stay, weights on
// the way from before the kernel ahead has ended on. Their rows fit shared memory if LinearRingTakes says so.
void LinearRingSm90(const LinearSm90Params& p, cudaStream_t stream);
bool LinearRingTakes(const LinearSm90Params& p);
// Few outputs, up to 16 rows of kFp8 or 64 of kBf16 (without rounding as activations; no kFp4): all weights on the way
// at once.
void LinearFewSm90(const LinearSm90Params& p, cudaStream_t stream);
// Up to 64 rows, chunks of K side by side: wgmma on weights in a ring of shared memory.
void LinearSplitSm90(const LinearSm90Params& p, cudaStream_t stream);
// Tiles of 128 outputs x 128 rows on wgmma.
void LinearWideSm90(const LinearSm90Params& p, cudaStream_t stream);
// Whichever is fastest for max_rows. All take more rows, too, and all but the last read the weights again for every 16
// or 64; these take 8 chunks of K at most (but for y_chunks).
void LinearSm90(const LinearSm90Params& p, cudaStream_t stream);
// The chunks' sums alone, into y_chunks, of a kBf16 weight of few outputs: whoever reads them adds them in order.
void LinearChunksSm90(const LinearSm90Params& p, cudaStream_t stream);

// Without rounding points (--numerics float): float32 rows, plain float32 sums in an order of their own
// (float_tiles_sm90.cuh), whatever the number of rows.
struct LinearFloatSm90Params {
  const int32_t* rows = nullptr;  // device
  int64_t max_rows = 0;
  const float* x = nullptr;               // [rows, in], 8-byte aligned, or
  const __nv_bfloat16* x_bf16 = nullptr;  // the same, where it is exact
  int64_t x_stride = 0;                   // elements, even
  TiledWeight weight;
  int64_t group_out = 0;  // as LinearSm90Params
  float* y = nullptr;     // [rows, out]
  int64_t y_stride = 0;
};
void LinearFloatSm90(const LinearFloatSm90Params& p, cudaStream_t stream);

}  // namespace senko::ops
