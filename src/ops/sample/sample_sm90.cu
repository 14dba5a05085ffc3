// A cluster of eight blocks a draw: the row is read once and stays in their shared memory, where every further pass
// runs.
//
// One row is bound by the passes' delays (two to six cluster barriers) and by the double-precision weights, some thirty
// operations a token on eight multiprocessors; many rows by those operations.
#include <cuda_runtime.h>

#include <algorithm>

#include "base/check.h"
#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "ops/sample/draw_row.cuh"
#include "ops/sample/process_row.cuh"
#include "ops/sample/row_cluster.cuh"
#include "ops/sample/sample_sm90.h"

namespace senko::ops {
namespace {

using namespace sm90;

constexpr size_t kStateBytes = (sizeof(BlockState) + 127) / 128 * 128;

int SliceLength(int64_t vocab) { return static_cast<int>((vocab + kBlocks * 32 - 1) / (kBlocks * 32) * 32); }

// Whatever the job asks of processors.h; false when nothing.
__device__ bool Process(const SampleSm90Params& p, const SampleJobSm90& job, const Slice& slice, BlockState& s,
                        RowStats* stats) {
  if (job.bias_count == 0 && job.banned_count == 0 && job.allowed == nullptr && job.counts == nullptr &&
      job.in_prompt == nullptr) {
    *stats = MeasureRow(slice, AsItCame{});
    return false;
  }
  if (job.bias_count > 0) AddBiases(p, job, slice, s);
  uint32_t banned = 0;
  if (job.banned_count > 0) {
    __syncthreads();
    banned = BanListed(p, job, slice);
    __syncthreads();
  }
  *stats = MeasureRow(slice, FourProcessor(p, job, slice));
  stats->banned += banned;
  return true;
}

__global__ __launch_bounds__(kThreads, 2) void SampleKernel(const SampleSm90Params p, const int slice_length) {
  extern __shared__ __align__(128) uint8_t shared[];
  BlockState& s = *reinterpret_cast<BlockState*>(shared);
  cuda::WaitForPrevious();
  const unsigned index = blockIdx.x / kBlocks;
  if (index >= static_cast<unsigned>(*p.num_jobs)) return;
  if (threadIdx.x == 0) s.job = p.jobs[index];
  __syncthreads();
  const SampleJobSm90& job = s.job;
  Slice slice;
  slice.values = reinterpret_cast<float*>(shared + kStateBytes);
  slice.block = blockIdx.x % kBlocks;
  slice.begin = static_cast<int>(slice.block) * slice_length;
  slice.count = max(0, min(slice_length, static_cast<int>(p.vocab) - slice.begin));
  LoadSlice(p, job.row, slice);
  cuda::LetNextBegin();

  RowStats stats;
  const bool changed = Process(p, job, slice, s, &stats);
  stats = CombineOverCluster(stats, 0, s);
  int32_t token = SampleRow(p, job, stats, slice, s);
  SampleResultSm90* const result = p.results + index;
  if (token >= 0 && job.top_logprobs >= 0) {
    if (changed) {
      __syncthreads();  // nobody reads the processed row any more
      LoadSlice(p, job.row, slice);
      stats = CombineOverCluster(MeasureRow(slice, AsItCame{}), 1, s);
    }
    if (!WriteLogprobs(p, job, stats, slice, s, token, result)) token = static_cast<int32_t>(kRowNotFinite);
  }
  if (slice.block == 0 && threadIdx.x == 0) {
    p.tokens[index] = token;
    result->token = token;
    if (token >= 0 && job.counts != nullptr && job.adds_token && job.counts[token] != 0xFFFF) ++job.counts[token];
  }
  ClusterSync();  // nobody reads this block's shared memory any more
}

__global__ void CountTokensKernel(const CountTokensSm90Params p) {
  cuda::WaitForPrevious();
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= *p.num || p.ids[i] < 0) return;
  auto* count = reinterpret_cast<unsigned short*>(p.tables[i]) + p.ids[i];
  unsigned short old = *count;
  while (old != 0xFFFF) {
    const unsigned short seen = atomicCAS(count, old, static_cast<unsigned short>(old + 1));
    if (seen == old) break;
    old = seen;
  }
}

}  // namespace

void SampleSm90(const SampleSm90Params& p, cudaStream_t stream) {
  if (p.max_jobs == 0) return;
  SENKO_CHECK(p.vocab >= 1 && p.vocab <= kMaxVocabSm90);
  const int slice_length = SliceLength(p.vocab);
  constexpr size_t kMostBytes = kStateBytes + 4 * kMaxVocabSm90 / kBlocks;
  static_assert(kMostBytes <= 227 * 1024);
  cuda::AllowSharedBytes<SampleKernel>(static_cast<int>(kMostBytes));
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>(p.max_jobs * kBlocks));
  launch.block = dim3(kThreads);
  launch.cluster = dim3(kBlocks);
  launch.shared_bytes = kStateBytes + 4 * static_cast<size_t>(slice_length);
  launch.stream = stream;
  cuda::Start(launch, SampleKernel, p, slice_length);
}

void CountTokensSm90(const CountTokensSm90Params& p, cudaStream_t stream) {
  if (p.max == 0) return;
  constexpr unsigned kEach = 128;
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>((p.max + kEach - 1) / kEach));
  launch.block = dim3(kEach);
  launch.stream = stream;
  cuda::Start(launch, CountTokensKernel, p);
}

}  // namespace senko::ops
