// A block takes row after row: warps of the query's latent, then warps of the window's, which keep their weights in
// registers and load the next row before they work on this one. A single row costs two round trips to memory (the
// count, the row) and one barrier; many rows are bounded by reading and writing them.
#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "base/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "numerics/bf16_lanes.cuh"
#include "numerics/fp8_lanes.cuh"
#include "ops/kv_write/kv_write_sm90.h"
#include "ops/norm/norm_lanes_sm90.cuh"

namespace senko::ops {
namespace {

constexpr int kMostWarps = 32;
constexpr int kMultiprocessors = 132;  // of an H200
template <typename Value>
constexpr int kRegisters = sizeof(Value) == 2 ? 48 : 64;
template <typename Value>
constexpr int kWarpsEach = 65536 / (32 * kRegisters<Value>);  // that fit on a multiprocessor

// A thread's eight columns of a row, as they lie in memory.
struct Bf16Columns {
  uint4 codes = make_uint4(0, 0, 0, 0);
  __device__ void Load(const __nv_bfloat16* p) { codes = *reinterpret_cast<const uint4*>(p); }
  __device__ void LoadNow(const __nv_bfloat16* p) { codes = cuda::LoadNow(p); }
  __device__ void Unpack(float (&x)[8]) const { numerics::UnpackBf16x8(codes, x); }
};
struct FloatColumns {
  float values[8] = {};
  __device__ void Load(const float* p) { sm90::LoadFloats(p, values); }
  __device__ void LoadNow(const float* p) { Load(p); }
  __device__ void Unpack(float (&x)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = values[i];
  }
};

// Rows blockIdx.x, blockIdx.x + gridDim.x, ... of one of the two latents. `thread` of `warps` warps; `barrier` is
// theirs.
template <typename Value, bool kQuery>
__device__ void NormRows(const BasicLatentNormsSm90Params<Value>& p, int thread, int warps, int barrier,
                         float (*warp_sums)[32]) {
  const int column = thread * 8, cols = static_cast<int>(kQuery ? p.q_dim : p.dim);
  const int rope_dim = static_cast<int>(p.rope_dim), skip = kQuery ? 4 : sm90::PairsToSkip(column, cols, rope_dim);
  // Offsets are 32-bit, as registers are few.
  const int width = static_cast<int>(p.q_dim + p.dim), from = column + (kQuery ? 0 : static_cast<int>(p.q_dim));
  const bool works = column < cols;
  float weight[8] = {};
  if (works) sm90::LoadFloats((kQuery ? p.q_weight : p.kv_weight) + column, weight);
  if (thread < 32) {
    sm90::ZeroBeyond(warp_sums[0], warps, thread);
    sm90::ZeroBeyond(warp_sums[1], warps, thread);
  }
  cuda::WaitForPrevious();
  const int rows = *p.rows;
  std::conditional_t<sizeof(Value) == 2, Bf16Columns, FloatColumns> next;
  int row = static_cast<int>(blockIdx.x), buffer = 0;  // sums of this row; the other holds those of the one before
  // Whether the first row lives is not waited for.
  if (works) next.LoadNow(p.latents + (row * width + from));
  for (; row < rows; row += static_cast<int>(gridDim.x), buffer ^= 1) {
    const sm90::Turns turns(p.rope + (row * rope_dim + column - cols + rope_dim), skip);
    float x[8];
    next.Unpack(x);
    const int next_row = row + static_cast<int>(gridDim.x);
    if (works && next_row < rows) next.Load(p.latents + (next_row * width + from));

    const float sum = sm90::WarpSumOfSquares(x);
    if (thread % 32 == 0) warp_sums[buffer][thread / 32] = sum;
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(warps * 32) : "memory");
    sm90::Normalise<Value>(x, weight, sm90::NormScale(warp_sums[buffer], warps, cols, p.rms_eps));
    if constexpr (kQuery) {
      if constexpr (sizeof(Value) == 2) numerics::RoundFp8OverLanes(x);
      if (works) sm90::StoreRow8(p.q + (row * cols + column), x);
    } else {
      turns.Apply<Value>(x, skip);
      const numerics::Fp8Lanes packed = numerics::QuantiseFp8OverLanes(x);
      uint8_t* to = p.staging + row * static_cast<int>(p.row_stride);
      if (works) *reinterpret_cast<uint2*>(to + column) = packed.codes;
      if (works && thread % 4 == 0) to[cols + column / 32] = packed.scale;
    }
  }
}

template <typename Value>
__global__ __maxnreg__(kRegisters<Value>) void LatentNormsKernel(const BasicLatentNormsSm90Params<Value> p,
                                                                 int query_warps) {
  __shared__ __align__(16) float warp_sums[2][2][32];
  const int thread = static_cast<int>(threadIdx.x), query_threads = query_warps * 32;
  cuda::LetNextBegin();
  if (thread < query_threads) {
    NormRows<Value, true>(p, thread, query_warps, 1, warp_sums[0]);
  } else {
    NormRows<Value, false>(p, thread - query_threads, static_cast<int>(blockDim.x) / 32 - query_warps, 2, warp_sums[1]);
  }
}

template <typename Value>
void StartNorms(const BasicLatentNormsSm90Params<Value>& p, cudaStream_t stream) {
  const int query_warps = p.q != nullptr ? sm90::WarpsOfRow(p.q_dim) : 0;
  const int warps = query_warps + sm90::WarpsOfRow(p.dim);
  if (p.max_rows == 0 || warps == 0) return;
  SENKO_CHECK(p.q_dim % 32 == 0 && p.dim % 32 == 0 && p.rope_dim % 2 == 0 && p.rope_dim <= p.dim);
  SENKO_CHECK(warps <= kMostWarps && p.row_stride % 16 == 0);
  SENKO_CHECK(p.max_rows * std::max(p.q_dim + p.dim, p.row_stride) < (int64_t{1} << 31));
  const int most_blocks = kMultiprocessors * std::max(1, kWarpsEach<Value> / warps);
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>(std::min<int64_t>(p.max_rows, most_blocks)));
  launch.block = dim3(static_cast<unsigned>(32 * warps));
  launch.stream = stream;
  cuda::Start(launch, LatentNormsKernel<Value>, p, query_warps);
}

}  // namespace

void LatentNormsSm90(const LatentNormsSm90Params& p, cudaStream_t stream) { StartNorms(p, stream); }
void LatentNormsSm90(const BasicLatentNormsSm90Params<float>& p, cudaStream_t stream) { StartNorms(p, stream); }

}  // namespace senko::ops
