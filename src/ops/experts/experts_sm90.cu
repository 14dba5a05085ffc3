// Two grouped products: up, whose blocks have gate and up of the same 64 columns and end with SwiGLU, and down. Items
// of 8 pairs stream (experts_stream_sm90.cu), larger ones use wgmma (wide_sm90.cuh).
#include <cuda_runtime.h>

#include <algorithm>

#include "base/check.h"
#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "ops/experts/expert_list_sm90.cuh"
#include "ops/experts/experts_sm90.h"
#include "ops/linear/wide_sm90.cuh"

namespace senko::ops {
namespace {

using namespace sm90;  // NOLINT: the products

template <typename Tiles, int kRows, bool kUp>
__global__ __launch_bounds__(kWideThreads, 1) void ExpertsKernel(const ExpertList l) {
  extern __shared__ __align__(128) uint8_t shared[];
  const WideRing<Tiles, kRows> ring(shared);
  __syncthreads();
  cuda::WaitForPrevious();
  ExpertItem item;
  if (!FindItem(l, blockIdx.y, &item)) return;
  const int64_t first = item.expert * l.num_tiles + int64_t{blockIdx.x} * kWideConsumers;
  const int64_t left = l.num_tiles - int64_t{blockIdx.x} * kWideConsumers;
  const WideWeights weights{l.tiles + first * l.tile_bytes, l.scales + first * l.tile_scale_bytes, l.in,
                            l.chunk_columns, static_cast<int>(min(int64_t{kWideConsumers}, left))};
  if (threadIdx.x < 128) {
    cuda::ShrinkRegisters<kWideProducerRegisters>();
    WideProduce(ring, weights, l.x, [&](int row) { return row < item.count ? RowOf<kUp>(l, item, row) : kNoRow; });
    cuda::LetNextBegin();
  } else {
    cuda::GrowRegisters<kWideConsumerRegisters>();
    const int consumer = static_cast<int>(threadIdx.x) / 128 - 1;
    float total[kRows / 2];
    WideConsume(ring, weights, consumer, total);
    StoreResults<kRows, kUp>(l, item, blockIdx.x, WideResults(ring, shared, consumer, total),
                             static_cast<int>(threadIdx.x) - 128);
  }
}

template <typename Tiles, int kRows, bool kUp>
void LaunchWide(const ExpertList& l, cudaStream_t stream) {
  constexpr int kShared = WideRing<Tiles, kRows>::kSharedBytes;
  cuda::AllowSharedBytes<ExpertsKernel<Tiles, kRows, kUp>>(kShared);
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>((l.num_tiles + kWideConsumers - 1) / kWideConsumers),
                     static_cast<unsigned>(l.max_items));
  launch.block = dim3(kWideThreads);
  launch.shared_bytes = kShared;
  launch.stream = stream;
  cuda::Start(launch, ExpertsKernel<Tiles, kRows, kUp>, l);
}

template <typename Tiles, bool kUp>
void LaunchRows(const ExpertList& l, cudaStream_t stream) {
  switch (l.block) {
    case 32:
      return LaunchWide<Tiles, 32, kUp>(l, stream);
    case 64:
      return LaunchWide<Tiles, 64, kUp>(l, stream);
    case 128:
      return LaunchWide<Tiles, 128, kUp>(l, stream);
    default:
      SENKO_CHECK(false);
  }
}

template <bool kUp>
void LaunchFormat(WeightFormat format, const ExpertList& l, cudaStream_t stream) {
  if (format == WeightFormat::kFp4) return LaunchRows<Fp4Tiles, kUp>(l, stream);
  SENKO_CHECK(format == WeightFormat::kFp8);
  LaunchRows<Fp8Tiles, kUp>(l, stream);
}

// What both kinds of experts have in common.
template <bool kUp>
ExpertList ListOf(const ExpertsSm90Params& p, const ExpertTiles& w, __nv_bfloat16* h) {
  ExpertList l;
  l.tiles = kUp ? w.up : w.down;
  l.scales = kUp ? w.up_scales : w.down_scales;
  l.in = kUp ? w.hidden : w.inter;
  l.out = kUp ? 2 * w.inter : w.hidden;
  l.num_tiles = l.out / kTileOutputs;
  l.tile_bytes = static_cast<int64_t>(TileBytes(w.format, kTileOutputs, l.in));
  l.tile_scale_bytes = static_cast<int64_t>(TileScaleBytes(w.format, kTileOutputs, l.in));
  l.chunk_columns = static_cast<int>(LinearChunkColumns(l.in));
  l.x = kUp ? p.x : h;
  l.limit = p.swiglu_limit;
  l.round = p.round_activations;
  l.h = h;
  l.inter = w.inter;
  l.y_row_slots = p.y_row_slots;
  return l;
}

template <bool kUp>
ExpertList Routed(const ExpertsSm90Params& p) {
  ExpertList l = ListOf<kUp>(p, p.weights, p.h);
  l.items = p.items;
  l.count = p.num_items;
  l.pairs = p.pairs;
  l.block = p.block;
  l.max_items = p.max_items;
  l.topk = p.topk;
  l.route_weights = p.route_weights;
  l.y = p.y;
  return l;
}

template <bool kUp>
ExpertList Shared(const ExpertsSm90Params& p) {
  ExpertList l = ListOf<kUp>(p, p.shared, p.shared_h);
  l.count = p.rows;
  l.block = std::max<int64_t>(32, ExpertBlock(p.max_rows, 1, 1));
  l.max_items = (p.max_rows + l.block - 1) / l.block;
  l.y = p.y + p.topk * p.weights.hidden;
  return l;
}

template <bool kUp>
void Product(const ExpertsSm90Params& p, cudaStream_t stream) {
  const bool has_shared = p.shared.inter > 0;
  const bool together = has_shared && p.block == 8 && p.max_rows <= kStreamSharedRows;
  if (p.block == 8) {
    StreamLists lists{p.weights.format, Routed<kUp>(p), {}, 0, p.scratch};
    if (together) {
      lists.shared = Shared<kUp>(p);
      lists.max_shared_rows = p.max_rows;
    }
    LaunchStream<kUp>(lists, stream);
  } else {
    LaunchFormat<kUp>(p.weights.format, Routed<kUp>(p), stream);
  }
  if (has_shared && !together) LaunchFormat<kUp>(p.shared.format, Shared<kUp>(p), stream);
}

// Where rows begin is counted in 32 bits.
void CheckSizes(const ExpertTiles& w, int64_t rows, int64_t pairs) {
  SENKO_CHECK(w.inter % 64 == 0 && w.hidden % 64 == 0);
  SENKO_CHECK(rows * (w.hidden / 8) < int64_t{kNoRow} && pairs * (w.inter / 8) < int64_t{kNoRow});
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
  const int64_t most_pairs = p.max_items * p.block;
  CheckSizes(p.weights, most_pairs / p.topk + 1, most_pairs);
  if (p.shared.inter > 0) {
    SENKO_CHECK(p.shared.format == WeightFormat::kFp8 && p.shared.hidden == p.weights.hidden);
    SENKO_CHECK(p.y_row_slots > p.topk && p.rows != nullptr && p.max_rows > 0);
    CheckSizes(p.shared, p.max_rows, p.max_rows);
  }
  Product<true>(p, stream);
  Product<false>(p, stream);
}

}  // namespace senko::ops
