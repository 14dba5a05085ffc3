// Products of many rows. Blocks of one wave, one a multiprocessor, take 256 outputs of an item in turn
// (wide_experts_sm90.cuh); the producer is ahead of the consumers, so that the next ones' weights and rows arrive while
// those write results. What an item has fewer than 128 rows costs less, by halves.
#include <cuda_runtime.h>

#include <algorithm>

#include "base/check.h"
#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "ops/experts/expert_list_sm90.cuh"
#include "ops/experts/wide_experts_sm90.cuh"

namespace senko::ops::sm90 {
namespace {

// The i-th piece of work, in the order in which blocks of a wave share weights and rows.
struct Piece {
  ExpertItem item;
  int64_t tile;  // the first of its tiles, of the item's expert
};

struct Pieces {
  const ExpertList& l;
  int64_t of_item, count;

  __device__ explicit Pieces(const ExpertList& list) : l(list) {
    constexpr int kTiles = kManyPairs * kPairTiles;
    const int64_t listed = *l.count, items = l.items != nullptr ? listed : (listed + l.block - 1) / l.block;
    of_item = (l.num_tiles + kTiles - 1) / kTiles;
    count = items * of_item;
  }
  __device__ Piece At(int64_t i) const {
    Piece piece;
    FindItem(l, i / of_item, &piece.item);
    piece.tile = i % of_item * (kManyPairs * kPairTiles);
    return piece;
  }
};

// Rows to multiply, of as many as there are.
__device__ int RowsOf(int count) { return count <= 32 ? 32 : count <= 64 ? 64 : kManyRows; }

template <int kRows, bool kUp, typename Tiles>
__device__ void Consume(const ExpertList& l, const Piece& piece, int pair, uint8_t* shared, ManyPlace<Tiles>& place) {
  using Shape = ManyShape<Tiles>;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  uint8_t* own = shared + Shape::kTotalsAt + pair * Shape::kTotalBytes;
  const int64_t tile = piece.tile + pair * kPairTiles;
  const auto tiles = static_cast<int>(min(int64_t{kPairTiles}, l.num_tiles - tile));
  ManySums<kRows> sums = {};  // undefined, wgmma's would live through all of the kernel
  ManyConsume<kRows>(l, pair, piece.item.expert * l.num_tiles + tile, tiles, reinterpret_cast<float4*>(own) + thread,
                     place, sums);
  auto* results = reinterpret_cast<__nv_bfloat16*>(own);
  RoundResults<kRows>(pair, results, sums);
  if (tiles > 0) StoreResults<kRows, kUp, 128>(l, piece.item, tile / kPairTiles, results, thread);
  SyncPair(pair);
}

template <typename Tiles, bool kUp>
__global__ __launch_bounds__(kManyThreads, 1) void ManyKernel(const __grid_constant__ ExpertList l) {
  using Shape = ManyShape<Tiles>;
  extern __shared__ __align__(1024) uint8_t shared[];
  ManyPlace<Tiles> place{cuda::SharedAddress(shared)};
  if (place.shared % 1024 != 0) __trap();
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < Shape::kStages; ++i) {
      cuda::InitBarrier(place.shared + Shape::kBarriersAt + i * 8, 128 + 1);
      cuda::InitBarrier(place.EmptyOf(i), kManyPairs * 128);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  cuda::WaitForPrevious();
  cuda::LetNextBegin();
  const Pieces pieces(l);
  if (threadIdx.x < 128) {
    cuda::ShrinkRegisters<kManyProducerRegisters>();
    place.parity = 1;  // nothing is in the way in the first round
    for (int64_t i = blockIdx.x; i < pieces.count; i += gridDim.x) {
      const Piece piece = pieces.At(i);
      const auto tiles = static_cast<int>(min(int64_t{Shape::kTiles}, l.num_tiles - piece.tile));
      ManyProduce(
          l, piece.item.expert * l.num_tiles + piece.tile, tiles, RowsOf(piece.item.count),
          [&](int row) { return row < piece.item.count ? RowOf<kUp>(l, piece.item, row) : kNoRow; }, place);
    }
  } else {
    cuda::GrowRegisters<kManyConsumerRegisters>();
    const int pair = static_cast<int>(threadIdx.x) / 128 - 1;
    for (int64_t i = blockIdx.x; i < pieces.count; i += gridDim.x) {
      const Piece piece = pieces.At(i);
      switch (RowsOf(piece.item.count)) {
        case 32:
          Consume<32, kUp>(l, piece, pair, shared, place);
          break;
        case 64:
          Consume<64, kUp>(l, piece, pair, shared, place);
          break;
        default:
          Consume<kManyRows, kUp>(l, piece, pair, shared, place);
      }
    }
  }
}

template <typename Tiles, bool kUp>
void Launch(const ExpertList& l, cudaStream_t stream) {
  constexpr int kShared = ManyShape<Tiles>::kSharedBytes;
  cuda::AllowSharedBytes<ManyKernel<Tiles, kUp>>(kShared);
  constexpr int kTiles = kManyPairs * kPairTiles;
  cuda::Launch launch;
  const int64_t pieces = l.max_items * ((l.num_tiles + kTiles - 1) / kTiles);
  launch.grid = dim3(static_cast<unsigned>(std::min<int64_t>(pieces, Multiprocessors())));
  launch.block = dim3(kManyThreads);
  launch.shared_bytes = kShared;
  launch.stream = stream;
  cuda::Start(launch, ManyKernel<Tiles, kUp>, l);
}

}  // namespace

template <bool kUp>
void LaunchMany(WeightFormat format, const ExpertList& l, cudaStream_t stream) {
  SENKO_CHECK(l.block <= kManyRows);
  if (format == WeightFormat::kFp4) return Launch<Fp4Tiles, kUp>(l, stream);
  SENKO_CHECK(format == WeightFormat::kFp8);
  Launch<Fp8Tiles, kUp>(l, stream);
}
template void LaunchMany<true>(WeightFormat format, const ExpertList& l, cudaStream_t stream);
template void LaunchMany<false>(WeightFormat format, const ExpertList& l, cudaStream_t stream);

}  // namespace senko::ops::sm90
