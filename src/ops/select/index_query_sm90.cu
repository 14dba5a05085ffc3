// Eight dims a thread, so that four lanes share a block of 32. Bound by reading bf16 queries once.
#include <cuda_runtime.h>

#include "base/check.h"
#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "numerics/quantise.h"
#include "ops/norm/norm_lanes_sm90.cuh"
#include "ops/select/select_sm90.h"

namespace senko::ops {
namespace {

constexpr int kThreads = 256;

// The model's rounding point, where rows are bf16.
template <typename Value>
__device__ float Round(float x) {
  return sizeof(Value) == 2 ? __bfloat162float(__float2bfloat16_rn(x)) : x;
}

template <typename Value>
__global__ __launch_bounds__(kThreads) void IndexQueryKernel(const BasicIndexQuerySm90Params<Value> p) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  cuda::WaitForPrevious();
  const int64_t rows = *p.rows;
  if (at < rows * p.heads) p.weights[at] = __fmul_rn(static_cast<float>(p.w[at]), p.weight_scale);
  const int eights = static_cast<int>(p.dim / 8);
  const bool works = at < rows * p.heads * eights;
  const int64_t head = works ? at / eights : 0;  // of all rows
  const int d = works ? static_cast<int>(at % eights) * 8 : 0;
  float x[8] = {};
  if (works) {
    sm90::LoadRow8(p.q + head * p.dim + d, x);
    const int first = static_cast<int>(p.dim - p.rope_dim);  // of the rotated dims
    const float* rope = p.rope + head / p.heads * p.rope_dim;
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      if (d + i < first) continue;
      const float cosine = rope[d + i - first], sine = rope[d + i - first + 1];
      const float a = x[i], b = x[i + 1];
      x[i] = Round<Value>(__fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine)));
      x[i + 1] = Round<Value>(__fadd_rn(__fmul_rn(a, sine), __fmul_rn(b, cosine)));
    }
  }
  cuda::LetNextBegin();
  uint32_t top = 0;
#pragma unroll
  for (float v : x) top = max(top, numerics::FloatBits(v) & 0x7FFFFFFFu);
  top = max(top, __shfl_xor_sync(0xFFFFFFFFu, top, 1));
  top = max(top, __shfl_xor_sync(0xFFFFFFFFu, top, 2));
  if (!works) return;
  const float a = numerics::FloatFromBits(top);
  const uint8_t code = numerics::Pow2CeilCode(
      numerics::MultiplyRn(numerics::RaiseToFloor(a, numerics::kFp4Floor), numerics::kInverseE2m1Max));
  const float scale = numerics::Ue8m0ToFloat(code);
  uint32_t packed = 0x77777777u;  // kE2m1Poison
  if (numerics::IsFinite(a)) {
    packed = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) packed |= uint32_t{numerics::PackE2m1(x[2 * i], x[2 * i + 1], scale)} << (8 * i);
  }
  *reinterpret_cast<uint32_t*>(p.values + (head * p.dim + d) / 2) = packed;
  if (d % 32 == 0) p.scales[(head * p.dim + d) / 32] = code;
}

template <typename Value>
void StartQuery(const BasicIndexQuerySm90Params<Value>& p, cudaStream_t stream) {
  if (p.max_rows == 0) return;
  SENKO_CHECK(p.dim % 32 == 0 && p.rope_dim <= p.dim && p.rope_dim % 2 == 0);
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>((p.max_rows * p.heads * (p.dim / 8) + kThreads - 1) / kThreads));
  launch.block = dim3(kThreads);
  launch.stream = stream;
  cuda::Start(launch, IndexQueryKernel<Value>, p);
}

}  // namespace

void IndexQuerySm90(const IndexQuerySm90Params& p, cudaStream_t stream) { StartQuery(p, stream); }
void IndexQuerySm90(const BasicIndexQuerySm90Params<float>& p, cudaStream_t stream) { StartQuery(p, stream); }

}  // namespace senko::ops
