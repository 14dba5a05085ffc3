// One to 16 rows and outputs enough for every multiprocessor: a block that stays takes two tiles at a time, all of
// their K. One thread brings their units into a ring of shared memory, from before the kernel ahead has ended on, and
// without a pause from tile to tile; eight warps multiply 16 outputs each. The rows lie in shared memory all the while.
//
// What bounds it: the weights' bandwidth.
#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "base/check.h"
#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "ops/linear/cluster_sums_sm90.cuh"
#include "ops/linear/linear_sm90.h"
#include "ops/linear/tiles_sm90.cuh"

namespace senko::ops {
namespace {

using namespace cuda;  // NOLINT: the instructions
using sm90::kTileOutputs;
using sm90::kUnitBytes;

constexpr int kConsumers = 256, kThreads = kConsumers + 32;
constexpr int kStageUnits = 4;                                 // of each warp
constexpr int kStageTileBytes = kStageUnits * 4 * kUnitBytes;  // of one tile: 8 KB
constexpr int kStageBytes = 2 * kStageTileBytes;
constexpr int kMostStages = 8;
constexpr int kMostShared = 227 * 1024;

struct Args {
  const int32_t* rows;
  const __nv_bfloat16* x;
  int64_t x_stride;
  const uint8_t* tiles;
  const uint8_t* scales;
  int in;
  int chunk_columns;
  int num_tiles;
  int stages;  // of the ring
  sm90::Outputs to;
};

// Where things lie in shared memory.
__host__ __device__ constexpr int RowPitch(int64_t in) { return static_cast<int>(in) * 2 + 16; }  // bytes, odd in 16s
template <int kOctets>
__host__ __device__ constexpr int RingAt(int64_t in) {
  return (8 * kOctets * RowPitch(in) + 127) / 128 * 128;
}

// A place in the ring, for one who goes round it.
struct Place {
  int slot = 0;
  uint32_t parity;
  __device__ explicit Place(uint32_t first_parity) : parity(first_parity) {}
  __device__ void Advance(int stages) {
    if (++slot == stages) slot = 0, parity ^= 1;
  }
};

// The units of a chunk of K, of one tile: from `first` on, `count` of them.
struct Chunk {
  int first, count;
  template <typename Tiles>
  __device__ static Chunk At(const Args& args, int chunk) {
    const int begin = chunk * args.chunk_columns;
    return {begin / Tiles::kColumns, min(args.chunk_columns, args.in - begin) / Tiles::kColumns};
  }
};

// One thread.
template <typename Tiles>
__device__ void Produce(const Args& args, uint32_t ring, uint32_t full, uint32_t empty) {
  const int tile_units = args.in / Tiles::kColumns;
  Place place(1);
  for (int pair = static_cast<int>(blockIdx.x); 2 * pair < args.num_tiles; pair += static_cast<int>(gridDim.x)) {
    const int tiles = min(2, args.num_tiles - 2 * pair);
    for (int begin = 0; begin < args.in; begin += args.chunk_columns) {
      const Chunk chunk = Chunk::At<Tiles>(args, begin / args.chunk_columns);
      for (int unit = 0; unit < chunk.count; unit += kStageUnits) {
        const auto bytes = static_cast<uint32_t>(min(kStageUnits, chunk.count - unit) * 4 * kUnitBytes);
        const auto slot = static_cast<uint32_t>(place.slot);
        WaitBarrier(empty + slot * 8, place.parity);
        ArriveExpecting(full + slot * 8, bytes * static_cast<uint32_t>(tiles));
        for (int t = 0; t < tiles; ++t) {
          const int64_t from = (int64_t{2 * pair + t} * tile_units + chunk.first + unit) * 4 * kUnitBytes;
          BulkCopy(ring + slot * kStageBytes + static_cast<uint32_t>(t * kStageTileBytes), args.tiles + from, bytes,
                   full + slot * 8);
        }
        place.Advance(args.stages);
      }
    }
  }
}

// Lane u: the scale of unit u of the chunk, of this warp's 16 outputs of an e4m3 tile.
template <typename Tiles>
__device__ uint32_t ScaleOf(const Args& args, int tile, int warp, int lane, const Chunk& chunk) {
  if constexpr (std::is_same_v<Tiles, sm90::Fp8Tiles>) {
    if (tile >= args.num_tiles || lane >= chunk.count) return 0;
    return __ldg(args.scales + (int64_t{tile} * 2 + warp % 4 / 2) * (args.in / 32) + chunk.first + lane);
  }
  return 0;
}

// += the unit at shared address `unit` (the lane's 16 bytes) times columns from `x` (the lane's row of matrices) on.
template <typename Tiles, int kOctets>
__device__ __forceinline__ void MultiplyUnits(uint32_t unit, uint32_t x, int pitch, uint32_t scales, int index,
                                              float (&sums)[kOctets][4]) {
  // 32 columns: one unit of e4m3, two of bf16.
  uint32_t a[2][4];
  if constexpr (std::is_same_v<Tiles, sm90::Fp8Tiles>) {
    uint4 codes;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(codes.x), "=r"(codes.y), "=r"(codes.z), "=r"(codes.w)
                 : "r"(unit));
    const uint32_t multiplier = Tiles::Multiplier(__shfl_sync(0xFFFFFFFFu, scales, index));
    Tiles::Expand(codes, 0, multiplier, a[0]);
    Tiles::Expand(codes, 1, multiplier, a[1]);
  } else {
#pragma unroll
    for (uint32_t step = 0; step < 2; ++step) {
      asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(a[step][0]), "=r"(a[step][1]), "=r"(a[step][2]), "=r"(a[step][3])
                   : "r"(unit + step * 4 * kUnitBytes));
    }
  }
#pragma unroll
  for (int octet = 0; octet < kOctets; ++octet) {
    uint32_t b[4];
    LoadMatrices(x + static_cast<uint32_t>(octet * 8 * pitch), b);
    MultiplyAdd16x8x16(sums[octet], a[0], b[0], b[1]);
    MultiplyAdd16x8x16(sums[octet], a[1], b[2], b[3]);
  }
}

template <typename Tiles, int kOctets>
__device__ void Consume(const Args& args, uint32_t x, uint32_t ring, uint32_t full, uint32_t empty, int rows) {
  constexpr int kUnitsAtOnce = 32 / Tiles::kColumns;
  static_assert(kStageUnits % kUnitsAtOnce == 0 && 64 % (kUnitsAtOnce * Tiles::kColumns) == 0);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int pitch = RowPitch(args.in);
  // Lane l names row l % 8, columns 8 (l / 8) on, of four neighbouring 8 x 8 matrices.
  const uint32_t x_lane = x + static_cast<uint32_t>(lane % 8 * pitch + lane / 8 * 16);
  const uint32_t ring_lane =
      ring + static_cast<uint32_t>(warp / 4 * kStageTileBytes + warp % 4 * kUnitBytes + lane * 16);
  const int chunks = (args.in + args.chunk_columns - 1) / args.chunk_columns;
  Place place(0);
  for (int pair = static_cast<int>(blockIdx.x); 2 * pair < args.num_tiles; pair += static_cast<int>(gridDim.x)) {
    const int tile = 2 * pair + warp / 4;
    float total[kOctets][4];
    uint32_t next_scales = ScaleOf<Tiles>(args, tile, warp, lane, Chunk::At<Tiles>(args, 0));
    for (int c = 0; c < chunks; ++c) {
      const Chunk chunk = Chunk::At<Tiles>(args, c);
      const uint32_t scales = next_scales;
      if (c + 1 < chunks) next_scales = ScaleOf<Tiles>(args, tile, warp, lane, Chunk::At<Tiles>(args, c + 1));
      float sums[kOctets][4] = {};
      for (int unit = 0; unit < chunk.count; unit += kStageUnits) {
        WaitBarrier(full + static_cast<uint32_t>(place.slot) * 8, place.parity);
        const uint32_t at = ring_lane + static_cast<uint32_t>(place.slot * kStageBytes);
        const uint32_t columns = x_lane + static_cast<uint32_t>((chunk.first + unit) * Tiles::kColumns * 2);
        const int count = min(kStageUnits, chunk.count - unit);
#pragma unroll
        for (int u = 0; u < kStageUnits; u += kUnitsAtOnce) {
          if (u >= count) break;
          MultiplyUnits<Tiles, kOctets>(at + static_cast<uint32_t>(u * 4 * kUnitBytes),
                                        columns + static_cast<uint32_t>(u * Tiles::kColumns * 2), pitch, scales,
                                        unit + u, sums);
        }
        __syncwarp();
        if (lane == 0) Arrive(empty + static_cast<uint32_t>(place.slot) * 8);
        place.Advance(args.stages);
      }
#pragma unroll
      for (int octet = 0; octet < kOctets; ++octet) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          total[octet][i] = c == 0 ? sums[octet][i] : __fadd_rn(total[octet][i], sums[octet][i]);
        }
      }
    }
#pragma unroll
    for (int octet = 0; octet < kOctets; ++octet) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = octet * 8 + lane % 4 * 2 + i % 2;
        const int64_t column = int64_t{tile} * kTileOutputs + warp % 4 * 16 + lane / 4 + i / 2 * 8;
        if (row < rows && column < args.to.out) args.to.Store(row, column, total[octet][i]);
      }
    }
  }
}

template <typename Tiles, int kOctets>
__global__ __launch_bounds__(kThreads) void RingKernel(const __grid_constant__ Args args) {
  extern __shared__ __align__(128) uint8_t shared[];
  const uint32_t x = SharedAddress(shared), ring = x + static_cast<uint32_t>(RingAt<kOctets>(args.in));
  const uint32_t full = ring + static_cast<uint32_t>(args.stages * kStageBytes);
  const uint32_t empty = full + static_cast<uint32_t>(args.stages) * 8;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (uint32_t i = 0; i < static_cast<uint32_t>(args.stages); ++i) {
      InitBarrier(full + i * 8, 1);
      InitBarrier(empty + i * 8, kConsumers / 32);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  LetNextBegin();
  if (thread >= kConsumers) {  // weights do not depend on the kernel ahead
    if (thread == kConsumers) Produce<Tiles>(args, ring, full, empty);
    return;
  }
  WaitForPrevious();
  const int rows = min(8 * kOctets, *args.rows);
  const int pieces = args.in / 8;
  for (int i = thread; i < 8 * kOctets * pieces; i += kConsumers) {
    const int row = i / pieces, piece = i % pieces;
    CopyAsync16(x + static_cast<uint32_t>(row * RowPitch(args.in) + piece * 16),
                row < rows ? args.x + row * args.x_stride + piece * 8 : args.x, row < rows);
  }
  CommitCopies();
  WaitForCopies<0>();
  asm volatile("bar.sync 1, 256;" ::: "memory");
  Consume<Tiles, kOctets>(args, x, ring, full, empty, rows);
}

int Multiprocessors() {
  int device = 0, count = 0;
  SENKO_CUDA(cudaGetDevice(&device));
  SENKO_CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

template <int kOctets>
int Stages(int64_t in) {
  return std::min(kMostStages, (kMostShared - RingAt<kOctets>(in)) / (kStageBytes + 16));
}

template <typename Tiles, int kOctets>
void LaunchShape(const LinearSm90Params& p, cudaStream_t stream) {
  const int64_t num_tiles = (p.weight.out + kTileOutputs - 1) / kTileOutputs;
  const int stages = Stages<kOctets>(p.weight.in);
  SENKO_CHECK(stages >= 2);
  const Args args{p.rows,
                  p.x,
                  p.x_stride,
                  p.weight.tiles,
                  p.weight.scales,
                  static_cast<int>(p.weight.in),
                  static_cast<int>(LinearChunkColumns(p.weight.in)),
                  static_cast<int>(num_tiles),
                  stages,
                  {p.weight.out, false, p.y_bf16, p.y_float, p.y_stride}};
  AllowSharedBytes<RingKernel<Tiles, kOctets>>(kMostShared);
  Launch launch;
  launch.grid = dim3(static_cast<unsigned>(std::min<int64_t>(Multiprocessors(), (num_tiles + 1) / 2)));
  launch.block = dim3(kThreads);
  launch.shared_bytes = static_cast<size_t>(RingAt<kOctets>(p.weight.in) + stages * (kStageBytes + 16));
  launch.stream = stream;
  Start(launch, RingKernel<Tiles, kOctets>, args);
}

template <typename Tiles>
void LaunchRows(const LinearSm90Params& p, cudaStream_t stream) {
  if (p.max_rows <= 8) return LaunchShape<Tiles, 1>(p, stream);
  LaunchShape<Tiles, 2>(p, stream);
}

}  // namespace

bool LinearRingTakes(const LinearSm90Params& p) {
  return p.max_rows <= 16 && p.group_out == 0 && !p.round_activations && p.y_chunks == nullptr &&
         (p.weight.format == WeightFormat::kBf16 || p.weight.format == WeightFormat::kFp8) &&
         Stages<2>(p.weight.in) >= 3;
}

void LinearRingSm90(const LinearSm90Params& p, cudaStream_t stream) {
  if (p.max_rows == 0) return;
  CheckLinearSm90(p);
  SENKO_CHECK(LinearRingTakes(p));
  SENKO_CHECK((p.y_bf16 == nullptr) != (p.y_float == nullptr));
  if (p.weight.format == WeightFormat::kFp8) return LaunchRows<sm90::Fp8Tiles>(p, stream);
  LaunchRows<sm90::Bf16Tiles>(p, stream);
}

}  // namespace senko::ops
