// Products of few rows. Blocks of one wave share all units evenly (stream_sm90.cuh): first those of the shared expert,
// then a run of the routed ones. A job, the chunks of two tiles of an item, that lies within one block is summed up
// there. Of any other, each block leaves its chunks' sums in memory; who had the first chunk waits for them at the very
// end of its own work and adds them in order. Nobody waits before having left all of its own sums, so nobody waits for
// ever; who has waited for a second traps, so that a fault of ours shows.
//
// Weights are asked for before the kernel ahead has ended, as many as the ring takes: up's of the shared expert, down's
// of all experts. The latter are found in the lists of items, which the router wrote two kernels ahead: up's kernel
// waits for its predecessors on every path before it lets down's begin or ends, so what they wrote is in memory then,
// and is read past the first-level cache. x, h, y and the sums belong to the kernels ahead until WaitForPrevious.
#include <cuda_runtime.h>

#include <algorithm>

#include "base/check.h"
#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "ops/experts/expert_list_sm90.cuh"
#include "ops/experts/stream_sm90.cuh"

namespace senko::ops {
namespace sm90 {
namespace {

constexpr int kMaxBlocks = 264;  // two a multiprocessor: all of them run at once, or they could wait for each other
constexpr int kOctetFloats = 8 * kUnitTiles * kTileOutputs;     // sums of 8 rows and 128 outputs
constexpr int kMostOctets = static_cast<int>(kStreamRows) / 8;  // of a routed item
constexpr int kMaxSharedJobs = static_cast<int>(kExpertTicketBytes / 4) - kMaxBlocks;

struct StreamArgs {
  ExpertList routed, shared;
  int shared_units;
  int shared_weight;   // what a unit of the shared expert costs, in routed ones
  uint32_t* tickets;   // chunks that have arrived: [blocks] of the job a block began last, then [shared jobs]
  float* sums;         // [blocks][chunks][kOctets][kOctetFloats]
  float* shared_sums;  // [shared units][kSharedOctets][kOctetFloats]
};

// Who has which units: about the same cost each.
struct Division {
  int blocks, shared_units, units = 0, weight;
  bool even = false;

  __device__ explicit Division(const StreamArgs& args)
      : blocks(static_cast<int>(gridDim.x)), shared_units(args.shared_units), weight(args.shared_weight) {}
  // As many as there are items for, which the router has left in memory by now.
  template <typename Tiles>
  __device__ void AddRouted(const StreamArgs& args, const StreamUnits<Tiles>& routed) {
    units = min(__ldcg(args.routed.count), static_cast<int>(args.routed.max_items)) * routed.OfItem();
    const int most_shared = (shared_units + blocks - 1) / blocks;
    even = (units + weight * shared_units) / blocks >= weight * most_shared;
  }
  __device__ int SharedBegin(int block) const { return block * shared_units / blocks; }
  __device__ int Begin(int block) const {
    if (!even) return block * units / blocks;
    return block * (units + weight * shared_units) / blocks - weight * SharedBegin(block);
  }
};

__device__ ExpertItem ItemAt(const ExpertList& l, int item) {
  const int32_t* at = &l.items[item].expert;
  return {__ldcg(at), __ldcg(at + 1), __ldcg(at + 2)};
}

__device__ void SyncConsumers() { asm volatile("bar.sync 1, %0;" ::"n"(kStreamConsumers) : "memory"); }

// All consumers: what they have written so far counts as `chunks` of the job.
__device__ void HandIn(uint32_t* ticket, int chunks) {
  SyncConsumers();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(ticket, static_cast<uint32_t>(chunks));
  }
}
constexpr uint32_t kMostPolls = 1u << 26;  // half a minute
// All consumers: until all chunks of the job have arrived. Leaves the ticket as it was found.
__device__ void Collect(uint32_t* ticket, int chunks) {
  if (threadIdx.x == 0) {
    uint32_t arrived, asked = 0;
    do {
      if (++asked == kMostPolls) __trap();
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(ticket) : "memory");
    } while (arrived != static_cast<uint32_t>(chunks));
    *ticket = 0;
    __threadfence();
  }
  SyncConsumers();
}

using OctetSums = float[kUnitTiles][4];
__device__ void StoreSums(float* to, const OctetSums& sums) {
#pragma unroll
  for (int t = 0; t < kUnitTiles; ++t) {
    __stcg(reinterpret_cast<float4*>(to) + t * kStreamConsumers + threadIdx.x,
           make_float4(sums[t][0], sums[t][1], sums[t][2], sums[t][3]));
  }
}
__device__ void AddSums(OctetSums& total, const OctetSums& sums) {
#pragma unroll
  for (int t = 0; t < kUnitTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) total[t][i] = __fadd_rn(total[t][i], sums[t][i]);
  }
}
// Of chunk c, from + c * stride.
__device__ void LoadTotal(OctetSums& total, const float* from, int chunks, int64_t stride) {
#pragma unroll 4
  for (int c = 0; c < chunks; ++c) {
    OctetSums sums;
#pragma unroll
    for (int t = 0; t < kUnitTiles; ++t) {
      const float4 four =
          __ldcg(reinterpret_cast<const float4*>(from + c * stride) + t * kStreamConsumers + threadIdx.x);
      sums[t][0] = four.x, sums[t][1] = four.y, sums[t][2] = four.z, sums[t][3] = four.w;
    }
    AddSums(total, sums);
  }
}

// Rows 8 octet on of an item: rounded, and out of the block.
template <bool kUp>
__device__ void StoreTotal(const ExpertList& l, const ExpertItem& item, int octet, int tile_pair,
                           __nv_bfloat16* results, const OctetSums& total) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  __nv_bfloat16* at = results + lane % 4 * 2 * kWideResultPitch + warp * 16 + lane / 4;
#pragma unroll
  for (int t = 0; t < kUnitTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      at[i % 2 * kWideResultPitch + t * kTileOutputs + i / 2 * 8] = __float2bfloat16_rn(total[t][i]);
    }
  }
  SyncConsumers();
  StoreResults<8, kUp, kStreamConsumers>(l, {item.expert, item.first + octet * 8, min(8, item.count - octet * 8)},
                                         tile_pair, results, thread);
  SyncConsumers();
}

// The producer warp, before the kernel ahead has ended: the weights of its first stages. Returns how many.
template <typename Tiles, typename Shape>
__device__ int BringEarly(const StreamArgs& args, const Division& division, const StreamUnits<Tiles>& routed,
                          uint32_t shared) {
  const int block = static_cast<int>(blockIdx.x);
  RingPlace<Shape> place;
  int early = 0;
  const auto bring = [&]<typename T>(const StreamUnits<T>& units, const ExpertList& l, int begin, int end) {
    for (int u = begin; u < end && early < Shape::kStages; ++u) {
      const StreamUnit unit = UnitAt(units, u);
      const int64_t expert = l.items != nullptr ? __ldcg(&l.items[unit.item].expert) : 0;
      for (int at = 0; at < unit.blocks && early < Shape::kStages; at += Shape::template kBlocks<T>) {
        if (threadIdx.x == kStreamConsumers) BringWeights<Shape, T>(l, expert, unit, at, place, shared);
        place.Advance();
        ++early;
      }
    }
  };
  if (args.shared_units > 0) {
    bring(StreamUnits<Fp8Tiles>(args.shared), args.shared, division.SharedBegin(block),
          division.SharedBegin(block + 1));
  }
  bring(routed, args.routed, division.Begin(block), division.Begin(block + 1));
  return early;
}

// The producer warp: all stages, but of the first `early` only the rows.
template <bool kUp, typename Tiles, typename Shape>
__device__ void Produce(const StreamArgs& args, const Division& division, const StreamUnits<Tiles>& routed,
                        uint32_t shared, int early) {
  const int block = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % 32;
  RingPlace<Shape> place;
  place.parity = 1;  // nothing is in the way in the first round
  const auto bring = [&]<typename T>(const StreamUnits<T>&, const ExpertList& l, int64_t expert, const StreamUnit& unit,
                                     int rows, const auto& row_of) {
    for (int at = 0; at < unit.blocks; at += Shape::template kBlocks<T>) {
      cuda::WaitBarrier(place.Empty(shared), place.parity);
      if (early > 0) {
        --early;
      } else if (lane == 0) {
        BringWeights<Shape, T>(l, expert, unit, at, place, shared);
      }
      BringRows<Shape, T>(l, unit, at, rows, row_of, place.At(shared));
      cuda::ArriveAfterCopies(place.Full(shared));
      place.Advance();
    }
  };
  if (args.shared_units > 0) {
    const StreamUnits<Fp8Tiles> units(args.shared);
    const int rows = *args.shared.count;
    for (int u = division.SharedBegin(block); u < division.SharedBegin(block + 1); ++u) {
      bring(units, args.shared, 0, UnitAt(units, u), rows,
            [&](int row) { return static_cast<uint32_t>(row * (args.shared.in / 8)); });
    }
  }
  int known = -1;
  ExpertItem item{};
  uint32_t mine = 0;  // where row `lane` begins
  for (int u = division.Begin(block); u < division.Begin(block + 1); ++u) {
    const StreamUnit unit = UnitAt(routed, u);
    if (unit.item != known) {
      known = unit.item;
      item = ItemAt(args.routed, known);
      mine = lane < item.count ? RowOf<kUp>(args.routed, item, lane) : 0;
    }
    bring(routed, args.routed, item.expert, unit, item.count,
          [&](int row) { return __shfl_sync(0xFFFFFFFFu, mine, row); });
  }
}

// Lane b: the scale of block b of the unit's chunk, of this warp's outputs of either e4m3 tile. 0 where there is none.
using Fp8Scales = uint32_t[kUnitTiles];
__device__ void LoadFp8Scales(const ExpertList& l, int64_t expert, const StreamUnit& unit, Fp8Scales& scales) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int t = 0; t < kUnitTiles; ++t) {
    const int64_t tile = kUnitTiles * unit.tile_pair + t;
    scales[t] = 0;
    if (tile >= l.num_tiles || lane >= unit.blocks) continue;
    scales[t] = __ldg(l.scales + (expert * l.num_tiles + tile) * l.tile_scale_bytes + warp / 2 * (l.in / 32) +
                      unit.first_block + lane);
  }
}

// The sums of a unit, of this warp's outputs and the first `octets` octets. An item's second tile may not be there:
// what is in its place then is stored nowhere.
template <typename Tiles, int kOctets, typename Shape>
__device__ void SumUnit(const StreamUnit& unit, const uint8_t* shared, int octets, const Fp8Scales& scales,
                        RingPlace<Shape>& place, StreamSums<kOctets>& sums) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t base = cuda::SharedAddress(shared);
#pragma unroll
  for (auto& octet : sums) {
#pragma unroll
    for (auto& tile : octet) {
#pragma unroll
      for (float& v : tile) v = 0;
    }
  }
  for (int at = 0; at < unit.blocks; at += Shape::template kBlocks<Tiles>) {
    cuda::WaitBarrier(place.Full(base), place.parity);
    const auto multiply = [&]<int kUsed>(std::integral_constant<int, kUsed>) {
      MultiplyStage < Shape, Tiles,
          kUsed<kOctets ? kUsed : kOctets, kOctets>(shared, place.slot * Shape::kStageBytes, warp, lane,
                                                    min(Shape::template kBlocks<Tiles>, unit.blocks - at), scales, at,
                                                    sums);
    };
    if (kOctets == 1 || octets == 1) {
      multiply(std::integral_constant<int, 1>());
    } else if (kOctets == 2 || octets == 2) {
      multiply(std::integral_constant<int, 2>());
    } else if (kOctets == 4 || octets <= 4) {
      multiply(std::integral_constant<int, 4>());
    } else {
      multiply(std::integral_constant<int, kOctets>());
    }
    __syncwarp();
    if (lane == 0) cuda::Arrive(place.Empty(base));
    place.Advance();
  }
}

__device__ int OctetsOf(int rows) { return (rows + 7) / 8; }

template <bool kUp, typename Tiles, typename Shape>
__device__ void Consume(const StreamArgs& args, const Division& division, const StreamUnits<Tiles>& units,
                        uint8_t* shared) {
  constexpr bool kIsFp8 = std::is_same_v<Tiles, Fp8Tiles>;
  constexpr int kOctets = Shape::kOctets, kSharedOctets = Shape::kSharedOctets;
  const int block = static_cast<int>(blockIdx.x);
  auto* results = reinterpret_cast<__nv_bfloat16*>(shared + Shape::kResultsAt);
  RingPlace<Shape> place;

  const int shared_begin = division.SharedBegin(block), shared_end = division.SharedBegin(block + 1);
  const int shared_rows = shared_begin < shared_end ? *args.shared.count : 0;
  if (shared_begin < shared_end) {
    const StreamUnits<Fp8Tiles> of_shared(args.shared);
    for (int u = shared_begin; u < shared_end; ++u) {
      const StreamUnit unit = UnitAt(of_shared, u);
      Fp8Scales scales;
      LoadFp8Scales(args.shared, 0, unit, scales);
      StreamSums<kSharedOctets> sums;
      SumUnit<Fp8Tiles, kSharedOctets>(unit, shared, OctetsOf(shared_rows), scales, place, sums);
#pragma unroll
      for (int o = 0; o < kSharedOctets; ++o) {
        if (o * 8 >= shared_rows) break;
        StoreSums(args.shared_sums + (int64_t{u} * kSharedOctets + o) * kOctetFloats, sums[o]);
      }
      HandIn(args.tickets + gridDim.x + unit.job, 1);
    }
  }

  const int begin = division.Begin(block), end = division.Begin(block + 1), chunks = units.chunks;
  const auto sums_of = [&](int owner, int chunk) {
    return args.sums + (int64_t{owner} * chunks + chunk) * (kOctets * kOctetFloats);
  };
  for (int u = begin; u < end;) {
    StreamUnit unit = UnitAt(units, u);
    const ExpertItem item = ItemAt(args.routed, unit.item);
    const int job_begin = u - unit.chunk, job_end = min(job_begin + chunks, end);
    const bool whole = unit.chunk == 0 && job_end - u == chunks;
    int owner = block;
    while (division.Begin(owner) > job_begin) --owner;
    const int first = u;
    StreamSums<kOctets> total = {};
    for (; u < job_end; ++u) {
      unit = UnitAt(units, u);
      Fp8Scales scales = {};
      if constexpr (kIsFp8) LoadFp8Scales(args.routed, item.expert, unit, scales);
      StreamSums<kOctets> sums;
      SumUnit<Tiles, kOctets>(unit, shared, OctetsOf(item.count), scales, place, sums);
#pragma unroll
      for (int o = 0; o < kOctets; ++o) {
        if (whole) {
          AddSums(total[o], sums[o]);
        } else if (o * 8 < item.count) {
          StoreSums(sums_of(owner, unit.chunk) + o * kOctetFloats, sums[o]);
        }
      }
    }
    if (whole) {
#pragma unroll
      for (int o = 0; o < kOctets; ++o) {
        if (o * 8 < item.count) StoreTotal<kUp>(args.routed, item, o, unit.tile_pair, results, total[o]);
      }
    } else {
      HandIn(args.tickets + owner, u - first);
    }
  }

  if (shared_begin < shared_end) {
    const StreamUnits<Fp8Tiles> of_shared(args.shared);
    const int shared_chunks = of_shared.chunks;
    for (int job = (shared_begin + shared_chunks - 1) / shared_chunks; job * shared_chunks < shared_end; ++job) {
      Collect(args.tickets + gridDim.x + job, shared_chunks);
      for (int o = 0; o * 8 < shared_rows; ++o) {
        OctetSums total = {};
        LoadTotal(total, args.shared_sums + (int64_t{job} * shared_chunks * kSharedOctets + o) * kOctetFloats,
                  shared_chunks, kSharedOctets * kOctetFloats);
        StoreTotal<kUp>(args.shared, {0, 0, shared_rows}, o, job, results, total);
      }
    }
  }
  if (begin == end) return;
  const StreamUnit last = UnitAt(units, end - 1);
  const int job_begin = end - 1 - last.chunk;
  if (job_begin < begin || last.chunk == chunks - 1) return;
  const ExpertItem item = ItemAt(args.routed, last.item);
  Collect(args.tickets + block, chunks);
  for (int o = 0; o * 8 < item.count; ++o) {
    OctetSums total = {};
    LoadTotal(total, sums_of(block, 0) + o * kOctetFloats, chunks, kOctets * kOctetFloats);
    StoreTotal<kUp>(args.routed, item, o, last.tile_pair, results, total);
  }
}

template <bool kUp, typename Tiles, typename Shape>
__global__ __launch_bounds__(kStreamThreads, 2) void StreamKernel(const __grid_constant__ StreamArgs args) {
  extern __shared__ __align__(128) uint8_t shared[];
  const uint32_t base = cuda::SharedAddress(shared);
  const StreamUnits<Tiles> routed(args.routed);
  Division division(args);
  const bool produces = threadIdx.x >= kStreamConsumers;
  int early = 0;
  if (threadIdx.x == kStreamConsumers) {
    for (uint32_t i = 0; i < Shape::kStages; ++i) {
      cuda::InitBarrier(base + Shape::kBarriersAt + i * 8, 32 + 1);
      cuda::InitBarrier(base + Shape::kBarriersAt + (Shape::kStages + i) * 8, kStreamConsumers / 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if (!kUp) division.AddRouted(args, routed);
  if (produces) early = BringEarly<Tiles, Shape>(args, division, routed, base);
  __syncthreads();
  cuda::WaitForPrevious();
  cuda::LetNextBegin();
  if (kUp) division.AddRouted(args, routed);
  if (produces) {
    Produce<kUp, Tiles, Shape>(args, division, routed, base, early);
  } else {
    Consume<kUp, Tiles, Shape>(args, division, routed, shared);
  }
}

int64_t TilePairs(const ExpertList& l) { return (l.num_tiles + 1) / 2; }

template <bool kUp, typename Tiles, typename Shape>
void Launch(const StreamArgs& args, int64_t units, cudaStream_t stream) {
  cuda::AllowSharedBytes<StreamKernel<kUp, Tiles, Shape>>(Shape::kSharedBytes);
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>(std::min<int64_t>({kMaxBlocks, 2 * Multiprocessors(), units})));
  launch.block = dim3(kStreamThreads);
  launch.shared_bytes = Shape::kSharedBytes;
  launch.stream = stream;
  cuda::Start(launch, StreamKernel<kUp, Tiles, Shape>, args);
}

constexpr int kMostSharedOctets = static_cast<int>(kStreamSharedRows) / 8;
template <bool kUp, typename Tiles>
void LaunchShape(const StreamArgs& args, int64_t units, int64_t max_shared_rows, cudaStream_t stream) {
  if (args.routed.block > 16)
    return Launch<kUp, Tiles, StreamShape<kMostOctets, kMostSharedOctets>>(args, units, stream);
  if (args.routed.block > 8 || max_shared_rows > 8) {
    return Launch<kUp, Tiles, StreamShape<2, kMostSharedOctets>>(args, units, stream);
  }
  Launch<kUp, Tiles, StreamShape<1, 1>>(args, units, stream);
}

size_t RoutedSumBytes(int64_t in) {
  return kMaxBlocks * static_cast<size_t>(LinearChunks(in)) * (kMostOctets * kOctetFloats * 4);
}

}  // namespace

template <bool kUp>
void LaunchStream(const StreamLists& lists, cudaStream_t stream) {
  SENKO_CHECK(lists.scratch != nullptr);
  StreamArgs args;
  args.routed = lists.routed;
  args.shared = lists.shared;
  const int64_t chunks = LinearChunks(lists.routed.in);
  const int64_t shared_jobs = lists.max_shared_rows > 0 ? TilePairs(lists.shared) : 0;
  const int64_t shared_units = shared_jobs > 0 ? shared_jobs * LinearChunks(lists.shared.in) : 0;
  const int64_t units = lists.routed.max_items * TilePairs(lists.routed) * chunks + 2 * shared_units;
  SENKO_CHECK(shared_jobs <= kMaxSharedJobs && lists.max_shared_rows <= kStreamSharedRows);
  SENKO_CHECK(units * kMaxBlocks < INT32_MAX);
  args.shared_units = static_cast<int>(shared_units);
  args.shared_weight = lists.format == WeightFormat::kFp4 ? 2 : 1;
  args.tickets = reinterpret_cast<uint32_t*>(lists.scratch);
  args.sums = reinterpret_cast<float*>(lists.scratch + kExpertTicketBytes);
  args.shared_sums = reinterpret_cast<float*>(lists.scratch + kExpertTicketBytes + RoutedSumBytes(lists.routed.in));
  SENKO_CHECK(lists.routed.block <= kMostOctets * 8);
  if (lists.format == WeightFormat::kFp4) return LaunchShape<kUp, Fp4Tiles>(args, units, lists.max_shared_rows, stream);
  SENKO_CHECK(lists.format == WeightFormat::kFp8);
  LaunchShape<kUp, Fp8Tiles>(args, units, lists.max_shared_rows, stream);
}
template void LaunchStream<true>(const StreamLists& lists, cudaStream_t stream);
template void LaunchStream<false>(const StreamLists& lists, cudaStream_t stream);

}  // namespace sm90

size_t ExpertsScratchBytes(int64_t hidden, int64_t inter, int64_t shared_inter) {
  using namespace sm90;  // NOLINT: the sizes
  const auto product = [](int64_t in, int64_t shared_in, int64_t shared_out) {
    const int64_t shared_units = (shared_out + 127) / 128 * LinearChunks(shared_in);
    return RoutedSumBytes(in) + static_cast<size_t>(shared_units * kStreamSharedRows / 8) * kOctetFloats * 4;
  };
  return kExpertTicketBytes + std::max(product(hidden, hidden, 2 * shared_inter), product(inter, shared_inter, hidden));
}

}  // namespace senko::ops
