// Experts without rounding points: a block has an item's pairs, eight at a time, and the same 64 columns of gate and
// up, or 64 outputs of down. The routed experts' launches, then the shared one's, whose items are eight rows.
#include <cuda_runtime.h>

#include "base/check.h"
#include "cuda/launch.h"
#include "cuda/ptx.cuh"
#include "ops/experts/experts_sm90.h"
#include "ops/linear/float_tiles_sm90.cuh"

namespace senko::ops {
namespace {

using Params = BasicExpertsSm90Params<float>;
using sm90::kFloatRows;

// What of the parameters a launch is about.
struct Part {
  Params p;
  bool shared;

  __host__ __device__ const ExpertTiles& weights() const { return shared ? p.shared : p.weights; }
  __device__ float* h() const { return shared ? p.shared_h : p.h; }
  // The block's item; of the shared expert it is its rows.
  __device__ bool Find(int64_t index, ExpertItem* item) const {
    if (!shared) {
      if (index >= *p.num_items) return false;
      *item = p.items[index];
      return true;
    }
    const int first = static_cast<int>(index) * kFloatRows;
    *item = {0, first, min(kFloatRows, *p.rows - first)};
    return item->count > 0;
  }
  __device__ int64_t Pair(int i) const { return shared ? i : p.pairs[i]; }
  __device__ int64_t RowOf(int64_t pair) const { return shared ? pair : pair / p.topk; }
  __device__ float Weight(int64_t pair) const {
    return shared || p.route_weights == nullptr ? 1.0f : p.route_weights[pair];
  }
  __device__ float* Y(int64_t pair) const {
    return p.y + (RowOf(pair) * p.y_row_slots + (shared ? p.topk : pair % p.topk)) * weights().hidden;
  }
};

// Comparisons that are false for NaN, so that NaN stays.
__device__ float Swiglu(float gate, float up, float limit, float weight) {
  if (limit > 0) {
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
  }
  const float silu = __fdiv_rn(gate, __fadd_rn(1.0f, expf(-gate)));
  return __fmul_rn(weight, __fmul_rn(silu, up));
}

template <WeightFormat kFormat>
__global__ __launch_bounds__(sm90::kFloatThreads, 1) void FloatUpKernel(const Part part) {
  cuda::WaitForPrevious();
  cuda::LetNextBegin();
  ExpertItem item;
  if (!part.Find(blockIdx.y, &item)) return;
  const ExpertTiles& w = part.weights();
  const int64_t tile = 2 * (item.expert * (w.inter / sm90::kTileOutputs) + blockIdx.x);
  for (int at = 0; at < item.count; at += kFloatRows) {
    const int count = min(kFloatRows, item.count - at), first = item.first + at;
    const float* x[kFloatRows];
#pragma unroll
    for (int r = 0; r < kFloatRows; ++r) x[r] = part.p.x + part.RowOf(part.Pair(first + min(r, count - 1))) * w.hidden;
    float gate[2][kFloatRows], up[2][kFloatRows];
    sm90::DotTile<kFormat>(w.up, w.up_scales, tile, w.hidden, x, gate);
    sm90::DotTile<kFormat>(w.up, w.up_scales, tile + 1, w.hidden, x, up);
    sm90::ForEachSum(blockIdx.x, count, [&](int o, int r, int64_t column) {
      const float weight = part.Weight(part.Pair(first + r));
      part.h()[(first + r) * w.inter + column] = Swiglu(gate[o][r], up[o][r], part.p.swiglu_limit, weight);
    });
  }
}

template <WeightFormat kFormat>
__global__ __launch_bounds__(sm90::kFloatThreads, 1) void FloatDownKernel(const Part part) {
  cuda::WaitForPrevious();
  cuda::LetNextBegin();
  ExpertItem item;
  if (!part.Find(blockIdx.y, &item)) return;
  const ExpertTiles& w = part.weights();
  const int64_t tile = item.expert * (w.hidden / sm90::kTileOutputs) + blockIdx.x;
  for (int at = 0; at < item.count; at += kFloatRows) {
    const int count = min(kFloatRows, item.count - at), first = item.first + at;
    const float* h[kFloatRows];
#pragma unroll
    for (int r = 0; r < kFloatRows; ++r) h[r] = part.h() + (first + min(r, count - 1)) * w.inter;
    float sums[2][kFloatRows];
    sm90::DotTile<kFormat>(w.down, w.down_scales, tile, w.inter, h, sums);
    sm90::ForEachSum(blockIdx.x, count,
                     [&](int o, int r, int64_t output) { part.Y(part.Pair(first + r))[output] = sums[o][r]; });
  }
}

template <WeightFormat kFormat>
void StartPart(const Part& part, int64_t items, cudaStream_t stream) {
  cuda::Launch launch;
  launch.grid = dim3(static_cast<unsigned>(part.weights().inter / sm90::kTileOutputs), static_cast<unsigned>(items));
  launch.block = dim3(sm90::kFloatThreads);
  launch.stream = stream;
  cuda::Start(launch, FloatUpKernel<kFormat>, part);
  launch.grid.x = static_cast<unsigned>(part.weights().hidden / sm90::kTileOutputs);
  cuda::Start(launch, FloatDownKernel<kFormat>, part);
}

void StartExperts(const Part& part, int64_t items, cudaStream_t stream) {
  const ExpertTiles& w = part.weights();
  SENKO_CHECK(w.inter % sm90::kTileOutputs == 0 && w.hidden % sm90::kTileOutputs == 0);
  if (w.format == WeightFormat::kFp4) return StartPart<WeightFormat::kFp4>(part, items, stream);
  SENKO_CHECK(w.format == WeightFormat::kFp8);
  StartPart<WeightFormat::kFp8>(part, items, stream);
}

}  // namespace

void ExpertsSm90(const Params& p, cudaStream_t stream) {
  if (p.max_items > 0) StartExperts({p, false}, p.max_items, stream);
  if (p.shared.inter > 0) StartExperts({p, true}, (p.max_rows + kFloatRows - 1) / kFloatRows, stream);
}

}  // namespace senko::ops
