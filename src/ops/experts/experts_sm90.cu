// Two grouped products: up, whose blocks have gate and up of the same 64 columns and end with SwiGLU, and down. Items
// of up to 32 pairs stream (experts_stream_sm90.cu), larger ones use wgmma (experts_wide_sm90.cu).
#include <cuda_runtime.h>

#include <algorithm>

#include "base/check.h"
#include "cuda/check.h"
#include "ops/experts/expert_list_sm90.cuh"
#include "ops/experts/experts_sm90.h"

namespace senko::ops {

int sm90::Multiprocessors() {
  int device = 0, count = 0;
  SENKO_CUDA(cudaGetDevice(&device));
  SENKO_CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

namespace {

using namespace sm90;  // NOLINT: the products

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
  l.block = std::max<int64_t>(64, ExpertBlock(p.max_rows, 1, 1));
  l.max_items = (p.max_rows + l.block - 1) / l.block;
  l.y = p.y + p.topk * p.weights.hidden;
  return l;
}

template <bool kUp>
void Product(const ExpertsSm90Params& p, cudaStream_t stream) {
  const bool has_shared = p.shared.inter > 0;
  const bool streams = p.block <= kStreamRows;
  const bool together = has_shared && streams && p.max_rows <= kStreamSharedRows;
  if (streams) {
    StreamLists lists{p.weights.format, Routed<kUp>(p), {}, 0, p.scratch};
    if (together) {
      lists.shared = Shared<kUp>(p);
      lists.max_shared_rows = p.max_rows;
    }
    LaunchStream<kUp>(lists, stream);
  } else {
    LaunchMany<kUp>(p.weights.format, Routed<kUp>(p), stream);
  }
  if (has_shared && !together) LaunchMany<kUp>(p.shared.format, Shared<kUp>(p), stream);
}

// Where rows begin is counted in 32 bits.
void CheckSizes(const ExpertTiles& w, int64_t rows, int64_t pairs) {
  SENKO_CHECK(w.inter % 64 == 0 && w.hidden % 64 == 0);
  SENKO_CHECK(rows * (w.hidden / 8) < int64_t{kNoRow} && pairs * (w.inter / 8) < int64_t{kNoRow});
}

}  // namespace

int64_t ExpertBlock(int64_t rows, int64_t topk, int64_t num_experts) {
  const int64_t each = rows * topk / num_experts;  // where the kernels cross: experts_sm90_bench
  if (each <= 2) return 8;
  if (each <= 10) return 16;
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
