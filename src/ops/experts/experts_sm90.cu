// Two grouped products: up, whose blocks have gate and up of the same 64 columns and end with SwiGLU, and down. Items
// of 8 pairs stream (stream_tiles_sm90.cuh), larger ones use wgmma (wide_sm90.cuh).
#include <cuda_runtime.h>

#include <type_traits>

#include "base/check.h"
#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "numerics/fp8_lanes.cuh"
#include "ops/experts/experts_sm90.h"
#include "ops/experts/stream_tiles_sm90.cuh"
#include "ops/linear/wide_sm90.cuh"

namespace senko::ops {
namespace {

using namespace sm90;  // NOLINT: the products

struct Args {
  ExpertsSm90Params p;
  int64_t in, out;    // of this product
  int64_t num_tiles;  // of an expert
  int64_t tile_bytes, tile_scale_bytes;
  const uint8_t* tiles;
  const uint8_t* scales;
  int chunk_columns;
};

__device__ float UpTo(float x, float limit) { return x > limit ? limit : x; }
__device__ float DownTo(float x, float limit) { return x < limit ? limit : x; }

// results: [row][gate, up]. Every warp of the 256 threads comes with all its lanes.
template <int kRows>
__device__ void StoreSwiglu(const Args& args, const ExpertItem& item, const __nv_bfloat16* results, int thread) {
  const ExpertsSm90Params& p = args.p;
  const int64_t first_column = int64_t{blockIdx.x} * kTileOutputs;
  for (int i = thread; i < kRows * 8; i += 256) {
    const int row = i / 8, piece = i % 8;
    const bool live = row < item.count;
    float weight = 1.0f;
    if (live && p.route_weights != nullptr) weight = p.route_weights[p.pairs[item.first + row]];
    float h[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const __nv_bfloat16* at = results + row * kWideResultPitch + piece * 8 + k;
      float gate = __bfloat162float(at[0]), up = __bfloat162float(at[kTileOutputs]);
      if (p.swiglu_limit > 0) {
        gate = UpTo(gate, p.swiglu_limit);
        up = DownTo(UpTo(up, p.swiglu_limit), -p.swiglu_limit);
      }
      const float silu = __fdiv_rn(gate, __fadd_rn(1.0f, expf(-gate)));
      h[k] = __bfloat162float(__float2bfloat16_rn(__fmul_rn(__fmul_rn(silu, up), weight)));
    }
    if (p.round_activations) numerics::RoundFp8OverLanes(h);
    if (!live) continue;
    uint4 codes;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const __nv_bfloat162 two = __floats2bfloat162_rn(h[2 * k], h[2 * k + 1]);
      (&codes.x)[k] = *reinterpret_cast<const uint32_t*>(&two);
    }
    *reinterpret_cast<uint4*>(p.h + (item.first + row) * p.weights.inter + first_column + piece * 8) = codes;
  }
}

template <int kRows>
__device__ void StoreDown(const Args& args, const ExpertItem& item, const __nv_bfloat16* results, int thread) {
  const ExpertsSm90Params& p = args.p;
  const int64_t first_column = int64_t{blockIdx.x} * kWideOutputs;
  const int pieces = static_cast<int>(min(int64_t{kWideOutputs}, args.out - first_column)) / 8;
  for (int i = thread; i < kRows * (kWideOutputs / 8); i += 256) {
    const int row = i / (kWideOutputs / 8), piece = i % (kWideOutputs / 8);
    if (row >= item.count || piece >= pieces) continue;
    const int64_t pair = p.pairs[item.first + row];
    __nv_bfloat16* to = p.y + (pair / p.topk * p.y_row_slots + pair % p.topk) * args.out + first_column + piece * 8;
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(results + row * kWideResultPitch + piece * 8);
  }
}

template <typename Tiles, int kRows, bool kUp>
__global__ __launch_bounds__(kRows == kStreamRows ? kStreamThreads : kWideThreads,
                             kRows == kStreamRows ? 3 : 1) void ExpertsKernel(const Args args) {
  extern __shared__ __align__(128) uint8_t shared[];
  const ExpertsSm90Params& p = args.p;
  const auto block = [&](const ExpertItem& item) {
    const int64_t first = item.expert * args.num_tiles + int64_t{blockIdx.x} * kWideConsumers;
    const int64_t left = args.num_tiles - int64_t{blockIdx.x} * kWideConsumers;
    return WideWeights{args.tiles + first * args.tile_bytes, args.scales + first * args.tile_scale_bytes, args.in,
                       args.chunk_columns, static_cast<int>(min(int64_t{kWideConsumers}, left))};
  };
  // Rows of x by the pair's row; rows of h in the order of the pairs.
  const auto row_of = [&](const ExpertItem& item) {
    return [&p, &args, item](int row) {
      if (row >= item.count) return kNoRow;
      const int64_t at = item.first + row;
      return static_cast<uint32_t>((kUp ? p.pairs[at] / p.topk : at) * (args.in / 8));
    };
  };
  const auto store = [&](const ExpertItem& item, const __nv_bfloat16* results, int thread) {
    if constexpr (kUp) {
      StoreSwiglu<kRows>(args, item, results, thread);
    } else {
      StoreDown<kRows>(args, item, results, thread);
    }
  };
  if constexpr (kRows == kStreamRows) {
    cuda::WaitForPrevious();
    if (blockIdx.y >= *p.num_items) return;
    const ExpertItem item = p.items[blockIdx.y];
    float total[4];
    StreamProduct<Tiles>(block(item), kUp ? p.x : p.h, row_of(item), shared, total);
    cuda::LetNextBegin();
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    auto* results = reinterpret_cast<__nv_bfloat16*>(shared);
    __nv_bfloat16* at = results + lane % 4 * 2 * kWideResultPitch + warp * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) at[i % 2 * kWideResultPitch + i / 2 * 8] = __float2bfloat16_rn(total[i]);
    __syncthreads();
    store(item, results, static_cast<int>(threadIdx.x));
  } else {
    const WideRing<Tiles, kRows> ring(shared);
    __syncthreads();
    cuda::WaitForPrevious();
    if (blockIdx.y >= *p.num_items) return;
    const ExpertItem item = p.items[blockIdx.y];
    if (threadIdx.x < 128) {
      cuda::ShrinkRegisters<kWideProducerRegisters>();
      WideProduce(ring, block(item), kUp ? p.x : p.h, row_of(item));
      cuda::LetNextBegin();
    } else {
      cuda::GrowRegisters<kWideConsumerRegisters>();
      const int consumer = static_cast<int>(threadIdx.x) / 128 - 1;
      float total[kRows / 2];
      WideConsume(ring, block(item), consumer, total);
      store(item, WideResults(ring, shared, consumer, total), static_cast<int>(threadIdx.x) - 128);
    }
  }
}

template <typename Tiles, int kRows, bool kUp>
void LaunchProduct(const Args& args, cudaStream_t stream) {
  constexpr bool kStream = kRows == kStreamRows;
  constexpr int kShared = [] {
    if constexpr (kRows == kStreamRows) {
      return kStreamSharedBytes;
    } else {
      return WideRing<Tiles, kRows>::kSharedBytes;
    }
  }();
  cuda::AllowSharedBytes<ExpertsKernel<Tiles, kRows, kUp>>(kShared);
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>((args.num_tiles + kWideConsumers - 1) / kWideConsumers),
                     static_cast<unsigned>(args.p.max_items));
  launch.block = dim3(kStream ? kStreamThreads : kWideThreads);
  launch.shared_bytes = kShared;
  launch.stream = stream;
  cuda::Start(launch, ExpertsKernel<Tiles, kRows, kUp>, args);
}

template <typename Tiles, bool kUp>
void LaunchRows(const Args& args, cudaStream_t stream) {
  switch (args.p.block) {
    case 8:
      return LaunchProduct<Tiles, 8, kUp>(args, stream);
    case 32:
      return LaunchProduct<Tiles, 32, kUp>(args, stream);
    case 64:
      return LaunchProduct<Tiles, 64, kUp>(args, stream);
    case 128:
      return LaunchProduct<Tiles, 128, kUp>(args, stream);
    default:
      SENKO_CHECK(false);
  }
}

template <bool kUp>
void LaunchFormat(const ExpertsSm90Params& p, cudaStream_t stream) {
  const ExpertTiles& w = p.weights;
  Args args;
  args.p = p;
  args.in = kUp ? w.hidden : w.inter;
  args.out = kUp ? 2 * w.inter : w.hidden;
  args.num_tiles = args.out / kTileOutputs;
  args.tile_bytes = static_cast<int64_t>(TileBytes(w.format, kTileOutputs, args.in));
  args.tile_scale_bytes = static_cast<int64_t>(TileScaleBytes(w.format, kTileOutputs, args.in));
  args.tiles = kUp ? w.up : w.down;
  args.scales = kUp ? w.up_scales : w.down_scales;
  args.chunk_columns = static_cast<int>(LinearChunkColumns(args.in));
  if (w.format == WeightFormat::kFp4) return LaunchRows<Fp4Tiles, kUp>(args, stream);
  SENKO_CHECK(w.format == WeightFormat::kFp8);
  LaunchRows<Fp8Tiles, kUp>(args, stream);
}

}  // namespace

int64_t ExpertBlock(int64_t rows, int64_t topk, int64_t num_experts) {
  const int64_t each = rows * topk / num_experts;  // where the kernels cross: experts_sm90_bench
  if (each <= 10) return 8;
  if (each <= 32) return 32;
  return each <= 64 ? 64 : 128;
}

void ExpertsSm90(const ExpertsSm90Params& p, cudaStream_t stream) {
  if (p.max_items == 0) return;
  SENKO_CHECK(p.weights.inter % 64 == 0 && p.weights.hidden % 64 == 0);
  const int64_t most_pairs = p.max_items * p.block;  // where rows begin is counted in 32 bits
  SENKO_CHECK((most_pairs / p.topk + 1) * (p.weights.hidden / 8) < int64_t{kNoRow});
  SENKO_CHECK(most_pairs * (p.weights.inter / 8) < int64_t{kNoRow});
  LaunchFormat<true>(p, stream);
  LaunchFormat<false>(p, stream);
}

}  // namespace senko::ops
