// A pair a thread: float64 cosines of a few thousand angles, once a step. Angles past 105,615 reduce the long way.
#include <cuda_runtime.h>

#include "base/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "ops/norm/rope_sm90.h"

namespace senko::ops {
namespace {

constexpr int kThreads = 128;

__global__ __launch_bounds__(kThreads) void RopeTableKernel(const int32_t* rows, const int64_t* positions,
                                                            const float* inv_freq, int64_t pairs, float2* table) {
  cuda::WaitForPrevious();
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = at / pairs;
  if (row >= *rows) return;
  const float angle = __fmul_rn(__ll2float_rn(positions[row]), inv_freq[at - row * pairs]);
  double sine, cosine;
  sincos(double{angle}, &sine, &cosine);
  table[at] = make_float2(__double2float_rn(cosine), __double2float_rn(sine));
}

}  // namespace

void RopeTableSm90(const int32_t* rows, int64_t max_rows, const int64_t* positions, const float* inv_freq,
                   int64_t pairs, float* table, cudaStream_t stream) {
  if (max_rows == 0 || pairs == 0) return;
  const int64_t blocks = (max_rows * pairs + kThreads - 1) / kThreads;
  SENKO_CHECK(blocks < (int64_t{1} << 31));
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>(blocks));
  launch.block = dim3(kThreads);
  launch.stream = stream;
  cuda::Start(launch, RopeTableKernel, rows, positions, inv_freq, pairs, reinterpret_cast<float2*>(table));
}

}  // namespace senko::ops
