// A linear of one to 16 rows: stream_sm90.cuh.
#include <cuda_runtime.h>

#include "base/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "ops/linear/linear_sm90.h"
#include "ops/linear/stream_sm90.cuh"

namespace senko::ops {
namespace {

using sm90::StreamArgs;

template <typename Tiles, int kRows>
__global__ __launch_bounds__(sm90::kStreamThreads) void StreamKernel(const StreamArgs args) {
  extern __shared__ __align__(128) uint8_t shared[];
  sm90::StreamBlock<Tiles, kRows>(args, shared, blockIdx.x, static_cast<int>(blockIdx.y), static_cast<int>(gridDim.y),
                                  0, int64_t{blockIdx.z} * kRows, [] { cuda::WaitForPrevious(); });
}

template <typename Tiles, int kRows>
void LaunchShape(const LinearSm90Params& p, const StreamArgs& args, cudaStream_t stream) {
  cuda::AllowSharedBytes<StreamKernel<Tiles, kRows>>(sm90::StreamSharedBytes<kRows>(8));
  const auto chunks = static_cast<unsigned>(LinearChunks(p.weight.in));
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>((p.weight.out + sm90::kTileOutputs - 1) / sm90::kTileOutputs), chunks,
                     static_cast<unsigned>((p.max_rows + kRows - 1) / kRows));
  launch.block = dim3(sm90::kStreamThreads);
  launch.cluster = dim3(1, chunks, 1);
  launch.shared_bytes = static_cast<size_t>(sm90::StreamSharedBytes<kRows>(static_cast<int>(chunks)));
  launch.stream = stream;
  cuda::Start(launch, StreamKernel<Tiles, kRows>, args);
}

template <typename Tiles>
void LaunchRows(const LinearSm90Params& p, const StreamArgs& args, cudaStream_t stream) {
  if (p.max_rows <= 2) return LaunchShape<Tiles, 2>(p, args, stream);
  if (p.max_rows <= 8) return LaunchShape<Tiles, 8>(p, args, stream);
  LaunchShape<Tiles, 16>(p, args, stream);
}

}  // namespace

void LinearStreamSm90(const LinearSm90Params& p, cudaStream_t stream) {
  if (p.max_rows == 0) return;
  CheckLinearSm90(p);
  SENKO_CHECK(LinearChunks(p.weight.in) <= 8);  // blocks of a cluster
  SENKO_CHECK((p.y_bf16 == nullptr) != (p.y_float == nullptr));
  const StreamArgs args{p.rows,
                        p.max_rows,
                        p.x,
                        p.x_stride,
                        p.weight.tiles,
                        p.weight.scales,
                        p.weight.in,
                        static_cast<int>(LinearChunkColumns(p.weight.in)),
                        static_cast<unsigned>(LinearGroupTiles(p)),
                        {p.weight.out, p.round_activations, p.y_bf16, p.y_float, p.y_stride}};
  switch (p.weight.format) {
    case WeightFormat::kFp8:
      return LaunchRows<sm90::Fp8Tiles>(p, args, stream);
    case WeightFormat::kFp4:
      return LaunchRows<sm90::Fp4Tiles>(p, args, stream);
    case WeightFormat::kBf16:
      return LaunchRows<sm90::Bf16Tiles>(p, args, stream);
    case WeightFormat::kF32:
      break;
  }
  SENKO_CHECK(false);
}

}  // namespace senko::ops
