// Coefficients: the projection's chunks of K side by side on the tensor cores, then a warp a row for their sum, the RMS
// and Sinkhorn's iterations.
#include <cuda_runtime.h>

#include "base/check.h"
#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "ops/mhc/mhc_sm90.h"

namespace senko::ops {
namespace {

constexpr int kStreams = static_cast<int>(kMhcStreams);
constexpr int kOutputs = static_cast<int>(kMhcOutputs);
constexpr int kParts = 3;  // bf16 rows of a float32 row
constexpr int kThreads = 256;
constexpr int kMostChunks = 20;  // of 4 x 5,120 columns

__global__ void SplitKernel(const float* fn, int64_t count, int64_t width, __nv_bfloat16* split) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  float rest = fn[i];
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const __nv_bfloat16 code = __float2bfloat16_rn(rest);
    split[(i / width * kParts + part) * width + i % width] = code;
    rest = __fsub_rn(rest, __bfloat162float(code));
  }
}

struct Args {
  MhcMixSm90Params p;
  int chunks;
};

// A block a row. The sum of squares: eight columns a thread at a time in ascending order, then a butterfly over the
// warp, the warps in order. All that is read is on the way at once; Sinkhorn's chain of divisions is what takes time.
__global__ __launch_bounds__(kThreads) void FinishKernel(const Args args) {
  const MhcMixSm90Params& p = args.p;
  __shared__ float warp_sums[kThreads / 32];
  __shared__ float of_chunk[kMostChunks][kOutputs];
  const int thread = static_cast<int>(threadIdx.x);
  // Lane l < 24 of the first warp has output l.
  const bool has_output = thread < kOutputs;
  const float base = has_output ? p.base[thread] : 0.0f;
  const float scale = has_output ? p.scale[thread < kStreams ? 0 : thread < 2 * kStreams ? 1 : 2] : 0.0f;
  cuda::LetNextBegin();
  cuda::WaitForPrevious();
  const int64_t row = blockIdx.x;
  const bool live = row < *p.rows;  // not waited for
  const int64_t width = kStreams * p.hidden;
  // A chunk's output is the sum of its three parts.
  constexpr int kEach = (kMostChunks * kOutputs + kThreads - 1) / kThreads;
  float parts[kEach][kParts];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int any = k * kThreads + thread, i = any < args.chunks * kOutputs ? any : 0;
    const float* part = p.scratch + (i / kOutputs * p.max_rows + row) * (kParts * kOutputs) + i % kOutputs * kParts;
#pragma unroll
    for (int part_of = 0; part_of < kParts; ++part_of) parts[k][part_of] = part[part_of];
  }
  const uint4* codes = reinterpret_cast<const uint4*>(p.streams + row * width);
  constexpr int kMostPieces = kMostChunks * static_cast<int>(kChunk) / 8 / kThreads;
  const int pieces = static_cast<int>(width / 8);
  uint4 eight[kMostPieces];
#pragma unroll
  for (int k = 0; k < kMostPieces; ++k) eight[k] = cuda::LoadNow(codes + min(k * kThreads + thread, pieces - 1));
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kMostPieces; ++k) {
    if (k * kThreads + thread >= pieces) break;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const uint32_t word = (&eight[k].x)[w];
      const float even = __uint_as_float(word << 16), odd = __uint_as_float(word & 0xFFFF0000u);
      sum = __fmaf_rn(even, even, sum);
      sum = __fmaf_rn(odd, odd, sum);
    }
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int i = k * kThreads + thread;
    if (i >= args.chunks * kOutputs) continue;
    of_chunk[i / kOutputs][i % kOutputs] = __fadd_rn(__fadd_rn(parts[k][2], parts[k][1]), parts[k][0]);
  }
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, lanes));
  if (thread % 32 == 0) warp_sums[thread / 32] = sum;
  __syncthreads();
  if (thread >= 32 || !live) return;
  float squares = 0;
  for (const float s : warp_sums) squares = __fadd_rn(squares, s);
  const float rms = __frcp_rn(__fsqrt_rn(__fadd_rn(__fdiv_rn(squares, static_cast<float>(width)), p.rms_eps)));

  const int lane = thread;
  float z = 0;
  if (has_output) {
    for (int c = 0; c < args.chunks; ++c) z = __fadd_rn(z, of_chunk[c][lane]);
    z = __fadd_rn(__fmul_rn(__fmul_rn(z, rms), scale), base);
  }
  if (lane < 2 * kStreams) {
    const float sigmoid = 1.0f / (1.0f + expf(-z));
    if (lane < kStreams) {
      p.pre[row * kStreams + lane] = __fadd_rn(sigmoid, p.hc_eps);
    } else {
      p.post[row * kStreams + lane - kStreams] = 2.0f * sigmoid;
    }
  }
  // comb[j][k] in lane 8 + 4 j + k: rows are four neighbours, columns four lanes apart.
  const auto row_max = [](float v) {
    v = fmaxf(v, __shfl_xor_sync(0xFFFFFFFFu, v, 1));
    return fmaxf(v, __shfl_xor_sync(0xFFFFFFFFu, v, 2));
  };
  const auto row_sum = [](float v) {
    v = __fadd_rn(v, __shfl_xor_sync(0xFFFFFFFFu, v, 1));
    return __fadd_rn(v, __shfl_xor_sync(0xFFFFFFFFu, v, 2));
  };
  const int first = (lane - 2 * kStreams) % kStreams + 2 * kStreams;  // of the lane's column; any lane for the others
  const auto column_sum = [&](float v) {
    float s = 0;
#pragma unroll
    for (int j = 0; j < kStreams; ++j) s = __fadd_rn(s, __shfl_sync(0xFFFFFFFFu, v, (first + kStreams * j) & 31));
    return s;
  };
  const bool in_comb = lane >= 2 * kStreams && lane < kOutputs;
  float c = in_comb ? z : 0.0f;
  c = expf(c - row_max(c));
  c = __fadd_rn(c / row_sum(c), p.hc_eps);
  for (int iter = 0; iter < p.sinkhorn_iters; ++iter) {
    if (iter > 0) c = c / __fadd_rn(row_sum(c), p.hc_eps);
    c = c / __fadd_rn(column_sum(c), p.hc_eps);
  }
  if (in_comb) p.comb[row * kStreams * kStreams + lane - 2 * kStreams] = c;
}

}  // namespace

void MhcSplitProjection(const float* fn, int64_t outputs, int64_t width, __nv_bfloat16* split, cudaStream_t stream) {
  const int64_t count = outputs * width;
  SplitKernel<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0, stream>>>(fn, count, width,
                                                                                                 split);
  SENKO_CUDA(cudaGetLastError());
}

size_t MhcMixScratchFloats(int64_t hidden, int64_t max_rows) {
  return static_cast<size_t>(LinearChunks(kStreams * hidden) * max_rows * kParts * kOutputs);
}

void MhcMixSm90(const MhcMixSm90Params& p, cudaStream_t stream) {
  if (p.max_rows == 0) return;
  SENKO_CHECK(p.fn.out == kParts * kOutputs && p.fn.in == kStreams * p.hidden);
  SENKO_CHECK(LinearChunks(p.fn.in) <= kMostChunks);
  LinearSm90Params project;
  project.rows = p.rows;
  project.max_rows = p.max_rows;
  project.x = p.streams;
  project.x_stride = kStreams * p.hidden;
  project.weight = p.fn;
  project.y_chunks = p.scratch;
  LinearChunksSm90(project, stream);
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>(p.max_rows));
  launch.block = dim3(kThreads);
  launch.stream = stream;
  cuda::Start(launch, FinishKernel, Args{p, static_cast<int>(LinearChunks(kStreams * p.hidden))});
}

}  // namespace senko::ops
