// Products of few rows. Blocks of one wave share all units evenly (stream_sm90.cuh): first those of the shared expert,
// whose weights are asked for before the kernel ahead has ended, then a run of the routed ones. A job, the chunks of
// two tiles of an item, that lies within one block is summed up there. Of any other, each block leaves its chunks' sums
// in memory; who had the first chunk waits for them at the very end of its own work and adds them in order. Nobody
// waits before having left all of its own sums, so nobody waits for ever.
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
constexpr int kOctetFloats = 4 * kStreamConsumers;  // sums of 8 rows and 128 outputs
constexpr int kMaxSharedJobs = static_cast<int>(kExpertTicketBytes / 4) - kMaxBlocks;

struct StreamArgs {
  ExpertList routed, shared;
  int shared_units;
  int shared_weight;   // what a unit of the shared expert costs, in routed ones
  uint32_t* tickets;   // chunks that have arrived: [blocks] of the job a block began last, then [shared jobs]
  float* sums;         // [blocks][chunks][kOctetFloats]
  float* shared_sums;  // [shared units][kOctets][kOctetFloats]
};

// Who has which units: about the same cost each.
struct Division {
  int blocks, shared_units, units, weight;
  bool even;

  __device__ Division(const StreamArgs& args, int routed_units)
      : blocks(static_cast<int>(gridDim.x)),
        shared_units(args.shared_units),
        units(routed_units),
        weight(args.shared_weight) {
    const int most_shared = (shared_units + blocks - 1) / blocks;
    even = (units + weight * shared_units) / blocks >= weight * most_shared;
  }
  __device__ int SharedBegin(int block) const { return block * shared_units / blocks; }
  __device__ int Begin(int block) const {
    if (!even) return block * units / blocks;
    return block * (units + weight * shared_units) / blocks - weight * SharedBegin(block);
  }
};

__device__ void SyncConsumers() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

// All consumers: what they have written so far counts as `chunks` of the job.
__device__ void HandIn(uint32_t* ticket, int chunks) {
  SyncConsumers();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(ticket, static_cast<uint32_t>(chunks));
  }
}
// All consumers: until all chunks of the job have arrived. Leaves the ticket as it was found.
__device__ void Collect(uint32_t* ticket, int chunks) {
  if (threadIdx.x == 0) {
    uint32_t arrived;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(ticket) : "memory");
    } while (arrived != static_cast<uint32_t>(chunks));
    *ticket = 0;
    __threadfence();
  }
  SyncConsumers();
}

__device__ void StoreSums(float* to, const float (&sums)[4]) {
  __stcg(reinterpret_cast<float4*>(to) + threadIdx.x, make_float4(sums[0], sums[1], sums[2], sums[3]));
}
__device__ void AddSums(float (&total)[4], const float* from) {
  const float4 sums = __ldcg(reinterpret_cast<const float4*>(from) + threadIdx.x);
  total[0] = __fadd_rn(total[0], sums.x);
  total[1] = __fadd_rn(total[1], sums.y);
  total[2] = __fadd_rn(total[2], sums.z);
  total[3] = __fadd_rn(total[3], sums.w);
}

// total: of the warp's outputs, rows 2 t and 2 t + 1: (g, g, g + 8, g + 8).
template <bool kUp>
__device__ void StoreTotal(const ExpertList& l, const ExpertItem& item, int tile_pair, __nv_bfloat16* results,
                           const float (&total)[4]) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  __nv_bfloat16* at = results + lane % 4 * 2 * kWideResultPitch + warp * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) at[i % 2 * kWideResultPitch + i / 2 * 8] = __float2bfloat16_rn(total[i]);
  SyncConsumers();
  StoreResults<kStreamRows, kUp>(l, item, tile_pair, results, thread);
  SyncConsumers();
}

template <bool kUp, typename Tiles, typename Shape>
__device__ void Produce(const StreamArgs& args, const Division& division, uint32_t shared, int early) {
  const int block = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % 32;
  RingPlace<Shape> place;
  place.parity = 1;  // nothing is in the way in the first round
  const auto bring = [&]<typename T>(const StreamUnits<T>&, const ExpertList& l, int64_t expert, const StreamUnit& unit,
                                     int rows, const auto& row_of) {
    for (int s = 0; s < unit.stages; ++s) {
      cuda::WaitBarrier(place.Empty(shared), place.parity);
      if (early > 0) {
        --early;
      } else if (lane == 0) {
        BringWeights<T>(l, expert, unit, s, place.At(shared), place.Full(shared));
      }
      BringRows<T>(l, unit, s, rows, row_of, place.At(shared));
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
  const StreamUnits<Tiles> units(args.routed);
  int known = -1;
  ExpertItem item{};
  uint32_t mine = 0;  // where row `lane` begins
  for (int u = division.Begin(block); u < division.Begin(block + 1); ++u) {
    const StreamUnit unit = UnitAt(units, u);
    if (unit.item != known) {
      known = unit.item;
      item = args.routed.items[known];
      mine = lane < item.count ? RowOf<kUp>(args.routed, item, lane) : 0;
    }
    bring(units, args.routed, item.expert, unit, item.count,
          [&](int row) { return __shfl_sync(0xFFFFFFFFu, mine, row); });
  }
}

// The sums of a unit, of this warp's outputs.
template <typename Tiles, int kOctets, typename Shape>
__device__ void SumUnit(const ExpertList& l, const StreamUnit& unit, const uint8_t* shared, uint32_t fp8_scales,
                        RingPlace<Shape>& place, float (&sums)[kOctets][4]) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const bool works = 2 * unit.tile_pair + warp / 4 < l.num_tiles;
  const uint32_t base = cuda::SharedAddress(shared);
#pragma unroll
  for (int o = 0; o < kOctets; ++o) {
#pragma unroll
    for (float& v : sums[o]) v = 0;
  }
  for (int s = 0; s < unit.stages; ++s) {
    cuda::WaitBarrier(place.Full(base), place.parity);
    if (works) {
      MultiplyStage<Tiles, kOctets>(shared, place.slot * Shape::kStageBytes, warp, lane,
                                    min(kStageBlocks, unit.blocks - s * kStageBlocks), fp8_scales, s * kStageBlocks,
                                    sums);
    }
    __syncwarp();
    if (lane == 0) cuda::Arrive(place.Empty(base));
    place.Advance();
  }
}

// Lane b: the scale of block b of the unit's chunk, of this warp's 32 outputs of an e4m3 tile. 0 where there is none.
__device__ uint32_t Fp8Scale(const ExpertList& l, int64_t expert, const StreamUnit& unit) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int tile = 2 * unit.tile_pair + warp / 4;
  if (tile >= l.num_tiles || lane >= unit.blocks) return 0;
  return __ldg(l.scales + (expert * l.num_tiles + tile) * l.tile_scale_bytes + warp % 4 / 2 * (l.in / 32) +
               unit.first_block + lane);
}

template <bool kUp, typename Tiles, int kOctets>
__device__ void Consume(const StreamArgs& args, const Division& division, uint8_t* shared) {
  using Shape = StreamShape<kOctets>;
  constexpr bool kIsFp8 = std::is_same_v<Tiles, Fp8Tiles>;
  const int block = static_cast<int>(blockIdx.x);
  auto* results = reinterpret_cast<__nv_bfloat16*>(shared + Shape::kResultsAt);
  RingPlace<Shape> place;

  const int shared_begin = division.SharedBegin(block), shared_end = division.SharedBegin(block + 1);
  if (shared_begin < shared_end) {
    const StreamUnits<Fp8Tiles> units(args.shared);
    for (int u = shared_begin; u < shared_end; ++u) {
      const StreamUnit unit = UnitAt(units, u);
      float sums[kOctets][4];
      SumUnit<Fp8Tiles, kOctets>(args.shared, unit, shared, Fp8Scale(args.shared, 0, unit), place, sums);
#pragma unroll
      for (int o = 0; o < kOctets; ++o)
        StoreSums(args.shared_sums + (int64_t{u} * kOctets + o) * kOctetFloats, sums[o]);
      HandIn(args.tickets + gridDim.x + unit.job, 1);
    }
  }

  const StreamUnits<Tiles> units(args.routed);
  const int begin = division.Begin(block), end = division.Begin(block + 1), chunks = units.chunks;
  const auto sums_of = [&](int owner, int chunk) {
    return args.sums + (int64_t{owner} * chunks + chunk) * kOctetFloats;
  };
  for (int u = begin; u < end;) {
    StreamUnit unit = UnitAt(units, u);
    const ExpertItem item = args.routed.items[unit.item];
    const int job_begin = u - unit.chunk, job_end = min(job_begin + chunks, end);
    const bool whole = unit.chunk == 0 && job_end - u == chunks;
    int owner = block;
    while (division.Begin(owner) > job_begin) --owner;
    const int first = u;
    float total[4] = {};
    for (; u < job_end; ++u) {
      unit = UnitAt(units, u);
      float sums[1][4];
      SumUnit<Tiles, 1>(args.routed, unit, shared, kIsFp8 ? Fp8Scale(args.routed, item.expert, unit) : 0, place, sums);
      if (whole) {
#pragma unroll
        for (int i = 0; i < 4; ++i) total[i] = __fadd_rn(total[i], sums[0][i]);
      } else {
        StoreSums(sums_of(owner, unit.chunk), sums[0]);
      }
    }
    if (whole) {
      StoreTotal<kUp>(args.routed, item, unit.tile_pair, results, total);
    } else {
      HandIn(args.tickets + owner, u - first);
    }
  }

  if (shared_begin < shared_end) {
    const StreamUnits<Fp8Tiles> units(args.shared);
    const int rows = *args.shared.count;
    for (int job = (shared_begin + units.chunks - 1) / units.chunks; job * units.chunks < shared_end; ++job) {
      Collect(args.tickets + gridDim.x + job, units.chunks);
      for (int o = 0; o < kOctets && o * 8 < rows; ++o) {
        float total[4] = {};
        for (int c = 0; c < units.chunks; ++c) {
          AddSums(total, args.shared_sums + ((int64_t{job} * units.chunks + c) * kOctets + o) * kOctetFloats);
        }
        StoreTotal<kUp>(args.shared, {0, o * 8, min(8, rows - o * 8)}, job, results, total);
      }
    }
  }
  if (begin == end) return;
  const StreamUnit last = UnitAt(units, end - 1);
  const int job_begin = end - 1 - last.chunk;
  if (job_begin < begin || last.chunk == chunks - 1) return;
  Collect(args.tickets + block, chunks);
  float total[4] = {};
  for (int c = 0; c < chunks; ++c) AddSums(total, sums_of(block, c));
  StoreTotal<kUp>(args.routed, args.routed.items[last.item], last.tile_pair, results, total);
}

template <bool kUp, typename Tiles, int kOctets>
__global__ __launch_bounds__(kStreamThreads,
                             kOctets == 1 ? 3 : 2) void StreamKernel(const __grid_constant__ StreamArgs args) {
  using Shape = StreamShape<kOctets>;
  extern __shared__ __align__(128) uint8_t shared[];
  const uint32_t base = cuda::SharedAddress(shared);
  int early = 0;  // stages of the shared expert whose weights do not wait for the kernel ahead; one thread knows
  if (threadIdx.x == kStreamConsumers) {
    for (uint32_t i = 0; i < Shape::kStages; ++i) {
      cuda::InitBarrier(base + Shape::kBarriersAt + i * 8, 32 + 1);
      cuda::InitBarrier(base + Shape::kBarriersAt + (Shape::kStages + i) * 8, kStreamConsumers / 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  const Division shared_division(args, 0);
  if (threadIdx.x >= kStreamConsumers && args.shared_units > 0) {
    const StreamUnits<Fp8Tiles> units(args.shared);
    const int block = static_cast<int>(blockIdx.x);
    for (int u = shared_division.SharedBegin(block); u < shared_division.SharedBegin(block + 1); ++u) {
      const StreamUnit unit = UnitAt(units, u);
      for (int s = 0; s < unit.stages && early < Shape::kStages; ++s, ++early) {
        if (threadIdx.x != kStreamConsumers) continue;
        const auto slot = static_cast<uint32_t>(early);
        BringWeights<Fp8Tiles>(args.shared, 0, unit, s, base + slot * Shape::kStageBytes,
                               base + Shape::kBarriersAt + slot * 8);
      }
    }
  }
  __syncthreads();
  cuda::WaitForPrevious();
  cuda::LetNextBegin();
  const StreamUnits<Tiles> units(args.routed);
  const Division division(args, min(*args.routed.count, static_cast<int>(args.routed.max_items)) * units.OfItem());
  if (threadIdx.x >= kStreamConsumers) {
    Produce<kUp, Tiles, Shape>(args, division, base, early);
  } else {
    Consume<kUp, Tiles, kOctets>(args, division, shared);
  }
}

int Multiprocessors() {
  int device = 0, count = 0;
  SENKO_CUDA(cudaGetDevice(&device));
  SENKO_CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

int64_t TilePairs(const ExpertList& l) { return (l.num_tiles + 1) / 2; }

template <bool kUp, typename Tiles, int kOctets>
void Launch(const StreamArgs& args, int64_t units, cudaStream_t stream) {
  constexpr int kShared = StreamShape<kOctets>::kSharedBytes;
  cuda::AllowSharedBytes<StreamKernel<kUp, Tiles, kOctets>>(kShared);
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>(std::min<int64_t>({kMaxBlocks, 2 * Multiprocessors(), units})));
  launch.block = dim3(kStreamThreads);
  launch.shared_bytes = kShared;
  launch.stream = stream;
  cuda::Start(launch, StreamKernel<kUp, Tiles, kOctets>, args);
}

size_t RoutedSumBytes(int64_t in) { return kMaxBlocks * static_cast<size_t>(LinearChunks(in)) * kOctetFloats * 4; }

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
  const bool many = lists.max_shared_rows > kStreamRows;
  if (lists.format == WeightFormat::kFp4) {
    return many ? Launch<kUp, Fp4Tiles, 8>(args, units, stream) : Launch<kUp, Fp4Tiles, 1>(args, units, stream);
  }
  SENKO_CHECK(lists.format == WeightFormat::kFp8);
  return many ? Launch<kUp, Fp8Tiles, 8>(args, units, stream) : Launch<kUp, Fp8Tiles, 1>(args, units, stream);
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
