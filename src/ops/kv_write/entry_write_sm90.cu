// One block a latent: warps of the entry, then warps of the index key. What is stored is a quarter of what is read, and
// true divisions by entry scales are most of the work; four layers of the model do it, off the way of a decode step's
// other rows.
#include <cuda_runtime.h>

#include "base/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "numerics/fp4_lanes.cuh"
#include "ops/kv_write/kv_write_sm90.h"
#include "ops/norm/norm_lanes_sm90.cuh"

namespace senko::ops {
namespace {

constexpr int kMostWarps = 32;

template <typename Value>
__global__ __launch_bounds__(32 * kMostWarps) void EntryWriteKernel(const BasicEntryWriteSm90Params<Value> p,
                                                                    int entry_warps) {
  __shared__ __align__(16) float warp_sums[32];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const bool is_entry = warp < entry_warps;
  const int column = static_cast<int>(threadIdx.x) * 8 - (is_entry ? 0 : entry_warps * 256);
  const int cols = static_cast<int>(is_entry ? p.dim : p.index_dim), rope_dim = static_cast<int>(p.rope_dim);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool works = column < cols;
  float x[8] = {}, weight[8] = {};
  if (works && !is_entry) sm90::LoadFloats(p.k_norm + column, weight);
  cuda::WaitForPrevious();
  const int64_t i = blockIdx.x;
  if (i >= *p.count) return;
  if (works) sm90::LoadRow8((is_entry ? p.latent : p.k) + i * cols + column, x);
  const int skip = sm90::PairsToSkip(column, cols, rope_dim);
  const sm90::Turns turns(p.rope + i * rope_dim + (column - cols + rope_dim), skip);
  const LatentRef ref = p.latents[i];
  // An entry's index is below 2^32, the most that positions allow.
  const uint32_t entry = static_cast<uint32_t>(ref.entry), in_page = static_cast<uint32_t>(p.entries.entries_per_page);
  uint8_t* page = p.entries.slab + int64_t{p.sequences[ref.sequence].pages[entry / in_page]} * p.entries.page_bytes;
  const int64_t at = entry % in_page;
  cuda::LetNextBegin();

  if (!is_entry) {
    const float sum = sm90::WarpSumOfSquares(x);
    if (lane == 0) warp_sums[warp - entry_warps] = sum;
    if (warp == entry_warps) sm90::ZeroBeyond(warp_sums, sm90::WarpsOfRow(cols), lane);
  }
  __syncthreads();
  if (is_entry) {
    turns.Apply<Value>(x, skip);
    const numerics::Fp4Lanes packed = numerics::QuantiseFp4Block16OverLanes(x);
    if (!works) return;
    uint8_t* to = page + p.entries.entry_offset + at * p.entries.entry_stride;
    *reinterpret_cast<uint32_t*>(to + column / 2) = packed.codes;
    if (threadIdx.x % 2 == 0) to[cols / 2 + column / 16] = packed.scale;
    return;
  }
  sm90::Normalise<Value>(x, weight, sm90::NormScale(warp_sums, sm90::WarpsOfRow(cols), cols, p.rms_eps));
  turns.Apply<Value>(x, skip);
  const numerics::Fp4Lanes packed = numerics::QuantiseFp4OverLanes(x);
  if (!works) return;
  uint8_t* values = page + p.entries.key_value_offset + at * p.entries.key_value_bytes;
  *reinterpret_cast<uint32_t*>(values + column / 2) = packed.codes;
  uint8_t* scales = page + p.entries.key_scale_offset + at * p.entries.key_scale_bytes;
  if (threadIdx.x % 4 == 0) scales[column / 32] = packed.scale;
}

template <typename Value>
void StartWrite(const BasicEntryWriteSm90Params<Value>& p, cudaStream_t stream) {
  if (p.max_count == 0) return;
  const int entry_warps = sm90::WarpsOfRow(p.dim), warps = entry_warps + sm90::WarpsOfRow(p.index_dim);
  SENKO_CHECK(p.dim % 32 == 0 && p.index_dim % 32 == 0 && warps <= kMostWarps);
  SENKO_CHECK(p.rope_dim % 2 == 0 && p.rope_dim <= p.dim && p.rope_dim <= p.index_dim);
  SENKO_CHECK(p.entries.page_bytes % 16 == 0 && p.entries.entry_offset % 16 == 0 && p.entries.entry_stride % 16 == 0);
  SENKO_CHECK(p.entries.key_value_offset % 16 == 0 && p.entries.key_value_bytes % 16 == 0);
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>(p.max_count));
  launch.block = dim3(static_cast<unsigned>(32 * warps));
  launch.stream = stream;
  cuda::Start(launch, EntryWriteKernel<Value>, p, entry_warps);
}

}  // namespace

void EntryWriteSm90(const EntryWriteSm90Params& p, cudaStream_t stream) { StartWrite(p, stream); }
void EntryWriteSm90(const BasicEntryWriteSm90Params<float>& p, cudaStream_t stream) { StartWrite(p, stream); }

}  // namespace senko::ops
