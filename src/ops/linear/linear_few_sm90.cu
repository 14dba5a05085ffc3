// A linear of few rows and few outputs: few_sm90.cuh.
#include <cuda_runtime.h>

#include "base/check.h"
#include "cuda/launch.h"
#include "ops/linear/few_sm90.cuh"
#include "ops/linear/linear_sm90.h"

namespace senko::ops {
namespace {

template <typename S>
__global__ __launch_bounds__(S::kThreads) void FewKernel(const sm90::FewArgs args) {
  extern __shared__ __align__(128) uint8_t shared[];
  sm90::FewBlock<S>(args, shared);
}

template <typename S>
void LaunchShape(const LinearSm90Params& p, cudaStream_t stream) {
  constexpr int kMostChunks = 8;  // of a cluster
  cuda::AllowSharedBytes<FewKernel<S>>(S::SharedBytes(kChunk, kMostChunks));
  cuda::Start(sm90::FewLaunch<S>(p, stream), FewKernel<S>, sm90::FewArgsOf<S>(p));
}

}  // namespace

void LinearFewSm90(const LinearSm90Params& p, cudaStream_t stream) {
  if (p.max_rows == 0) return;
  CheckLinearSm90(p);
  SENKO_CHECK((p.y_bf16 != nullptr) + (p.y_float != nullptr) + (p.y_chunks != nullptr) == 1);
  SENKO_CHECK(p.y_chunks != nullptr || LinearChunks(p.weight.in) <= 8);  // blocks of a cluster
  if (p.weight.format == WeightFormat::kFp8) {
    if (p.max_rows <= 2) return LaunchShape<sm90::FewShape<sm90::Fp8Tiles, 4, 2>>(p, stream);
    if (p.max_rows <= 8) return LaunchShape<sm90::FewShape<sm90::Fp8Tiles, 4, 8>>(p, stream);
    return LaunchShape<sm90::FewShape<sm90::Fp8Tiles, 4, 16>>(p, stream);
  }
  SENKO_CHECK(p.weight.format == WeightFormat::kBf16 && !p.round_activations);
  if (p.max_rows <= 2) return LaunchShape<sm90::FewShape<sm90::Bf16Tiles, 1, 2>>(p, stream);
  if (p.max_rows <= 8) return LaunchShape<sm90::FewShape<sm90::Bf16Tiles, 1, 8>>(p, stream);
  if (p.max_rows <= 16) return LaunchShape<sm90::FewShape<sm90::Bf16Tiles, 1, 16>>(p, stream);
  if (p.max_rows <= 32) return LaunchShape<sm90::FewShape<sm90::Bf16Tiles, 1, 32>>(p, stream);
  LaunchShape<sm90::FewShape<sm90::Bf16Tiles, 1, 64>>(p, stream);
}

}  // namespace senko::ops
