// A warp takes kItems pairs of a row and a slot: as many lanes compute their table rows, then all lanes read them, all
// at once, and multiply out. What bounds it is how many translations of host addresses the machine resolves (two a
// pair: values and scales lie apart), 30 to 40 million a second, and at one token the way there: 3.6 us.
//
// Pairs are taken slot by slot. A slot's rows lie in its head's part of the table, so that what is read at a time spans
// 1 / slots of it: of the released model's scales 128 MiB, whose translations stay.
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "base/check.h"
#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "numerics/ue8m0.h"
#include "ops/engram/engram_sm90.h"

namespace senko::ops {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr unsigned kAll = 0xFFFFFFFFu;

// Where pair (row, slot) is in the table; -1 where what it needs is not there.
__device__ int64_t TableRow(const EngramGatherSm90Params& p, int64_t row, int slot) {
  const int64_t position = p.positions[row];
  const int32_t sequence = p.sequences[row];
  const int32_t* tokens = p.tokens[sequence];
  const int64_t begin = p.tokens_begin[sequence];
  const int reach = slot / p.hash.heads + 1;  // positions back
  int32_t ids[kMaxNgramSm90], compressed[kMaxNgramSm90];
#pragma unroll
  for (int back = 0; back < kMaxNgramSm90; ++back) {
    const int64_t at = position - back;
    ids[back] = back <= reach && at >= 0 && at >= begin ? tokens[at - begin] : -1;
  }
#pragma unroll
  for (int back = 0; back < kMaxNgramSm90; ++back) {
    compressed[back] = ids[back] >= 0 && ids[back] < p.vocab ? p.token_map[ids[back]] : p.pad;
  }
  bool blocked = false, there = true;
  uint64_t mixed = 0;
#pragma unroll
  for (int back = 0; back < kMaxNgramSm90; ++back) {
    if (back > reach) break;
    blocked = blocked || position < back || (ids[back] >= 0 && ids[back] == p.image_token);
    there = there && (blocked || position - back >= begin);
    mixed ^= static_cast<uint64_t>(blocked ? p.pad : compressed[back]) * p.hash.multipliers[back];
  }
  const int64_t table_row = static_cast<int64_t>(mixed % p.hash.primes[slot]) + p.hash.offsets[slot];
  return there && table_row < p.table_rows ? table_row : -1;
}

// Eight e4m3 codes times a scale.
__device__ uint4 Expand(uint2 codes, float scale) {
  uint4 out;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = i < 2 ? codes.x : codes.y;
    const auto two = static_cast<__nv_fp8x2_storage_t>(word >> (16 * (i % 2)));
    const float2 v = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3)));
    const __nv_bfloat162 pair = __floats2bfloat162_rn(__fmul_rn(v.x, scale), __fmul_rn(v.y, scale));
    (&out.x)[i] = *reinterpret_cast<const uint32_t*>(&pair);
  }
  return out;
}

// kPieces: dim / 8, or 0 for any.
template <int kPieces, int kItems>
__global__ __launch_bounds__(kThreads) void GatherKernel(const __grid_constant__ EngramGatherSm90Params p) {
  cuda::WaitForPrevious();
  // The next kernel is not let begin early: it would hold an SM's shared memory for as long as this takes.
  const auto rows = static_cast<uint32_t>(*p.rows);
  const auto slots = static_cast<uint32_t>((p.hash.max_ngram - 1) * p.hash.heads);
  const uint32_t items = rows * slots;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int pieces = kPieces > 0 ? kPieces : static_cast<int>(p.dim / 8);
  const int64_t blocks = p.dim / 32;
  const uint32_t step = gridDim.x * kWarps * kItems;
  for (uint32_t first = (blockIdx.x * kWarps + threadIdx.x / 32) * kItems; first < items; first += step) {
    const int count = static_cast<int>(min(items - first, uint32_t{kItems}));
    int64_t table_row = -1;
    uint32_t out_row = 0;
    if (lane < count) {
      const uint32_t slot = (first + static_cast<uint32_t>(lane)) / rows,
                     row = first + static_cast<uint32_t>(lane) - slot * rows;
      table_row = TableRow(p, row, static_cast<int>(slot));
      out_row = row * slots + slot;
    }
    for (int base = 0; base < count * pieces; base += kItems * 32) {
      uint2 codes[kItems];
      uint32_t scales[kItems];
      int64_t to[kItems];
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int at = base + i * 32 + lane, item = at / pieces, piece = at % pieces;
        const bool live = at < count * pieces;
        const int64_t from = __shfl_sync(kAll, table_row, item);
        const uint32_t out = __shfl_sync(kAll, out_row, item);
        to[i] = live ? int64_t{out} * p.dim + piece * 8 : -1;
        const bool there = live && from >= 0;
        codes[i] = there ? __ldg(reinterpret_cast<const uint2*>(p.values + from * p.dim) + piece) : make_uint2(0, 0);
        scales[i] = there ? __ldg(p.scales + from * blocks + piece / 4) : 255u;
      }
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const uint4 v = Expand(codes[i], numerics::Ue8m0ToFloat(static_cast<uint8_t>(scales[i])));
        if (to[i] >= 0) *reinterpret_cast<uint4*>(p.out + to[i]) = v;
      }
    }
  }
}

template <int kPieces>
void LaunchPieces(const EngramGatherSm90Params& p, cudaStream_t stream) {
  const int64_t items = p.max_rows * p.hash.slots();
  const int64_t warps = int64_t{p.max_blocks} * kWarps, each = (items + warps - 1) / warps;
  const auto start = [&](auto* kernel, int64_t kernel_items) {
    cuda::Launch launch;
    const int64_t block_items = kernel_items * kWarps;
    launch.grid = dim3(static_cast<unsigned>(std::min<int64_t>((items + block_items - 1) / block_items, p.max_blocks)));
    launch.block = dim3(kThreads);
    launch.stream = stream;
    cuda::Start(launch, kernel, p);
  };
  if (each <= 1) return start(GatherKernel<kPieces, 1>, 1);
  if (each <= 2) return start(GatherKernel<kPieces, 2>, 2);
  if (each <= 4) return start(GatherKernel<kPieces, 4>, 4);
  start(GatherKernel<kPieces, 8>, 8);
}

}  // namespace

void EngramGatherSm90(const EngramGatherSm90Params& p, cudaStream_t stream) {
  if (p.max_rows == 0) return;
  const EngramHashSm90& hash = p.hash;
  SENKO_CHECK(hash.max_ngram >= 2 && hash.max_ngram <= kMaxNgramSm90 && hash.heads >= 1);
  SENKO_CHECK(hash.slots() <= kMaxEngramSlotsSm90 && p.max_rows * hash.slots() < int64_t{1} << 31);
  SENKO_CHECK(p.dim % 32 == 0 && p.dim > 0 && p.max_blocks > 0);
  SENKO_CHECK(reinterpret_cast<uintptr_t>(p.values) % 8 == 0 && reinterpret_cast<uintptr_t>(p.out) % 16 == 0);
  if (p.dim == 256) return LaunchPieces<32>(p, stream);
  LaunchPieces<0>(p, stream);
}

}  // namespace senko::ops
