// RMSNorm rows in the canonical order of norm.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/norm/rms_norm_cpu.cc"
#include <hwy/foreach_target.h>
// after foreach_target.h, as Highway wants it
#include <algorithm>
#include <cmath>

#include "numerics/simd/lanes-inl.h"
#include "ops/canonical_sum-inl.h"
#include "ops/norm/norm.h"
#include "ops/norm/rms_row.h"

HWY_BEFORE_NAMESPACE();
namespace senko::ops::HWY_NAMESPACE {
namespace {

namespace v = numerics::HWY_NAMESPACE;

void RmsRow(const float* x, const float* weight, int64_t cols, float eps, bool round_bf16, float* y) {
  const float scale = 1.0f / std::sqrt(SumOfSquares(x, cols) / static_cast<float>(cols) + eps);
  const v::F32x16 scale16 = v::Set16(scale);
  for (int64_t c = 0; c < cols; c += 16) {
    const auto left = static_cast<size_t>(std::min<int64_t>(16, cols - c));
    const bool whole = left == 16;
    const v::F32x16 value = whole ? v::LoadU16(x + c) : v::LoadN16(x + c, left);
    const v::F32x16 gain = whole ? v::LoadU16(weight + c) : v::LoadN16(weight + c, left);
    v::F32x16 out = v::Mul(gain, v::Mul(value, scale16));
    if (round_bf16) out = v::RoundToBf16(out);
    if (whole) {
      v::StoreU16(out, y + c);
    } else {
      v::StoreN16(out, y + c, left);
    }
  }
}

}  // namespace
}  // namespace senko::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace senko::ops {

HWY_EXPORT(RmsRow);

void RmsNormRowCpu(const float* x, const float* weight, int64_t cols, float eps, bool round_bf16, float* y) {
  HWY_DYNAMIC_DISPATCH(RmsRow)(x, weight, cols, eps, round_bf16, y);
}

void RmsNormCpu(const RmsNormParams& p, ThreadPool& pool) {
  const auto row = HWY_DYNAMIC_DISPATCH(RmsRow);
  // A handful of rows costs less than waking the threads.
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, p.cols));
  pool.ParallelFor(p.rows, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      row(p.x + r * p.cols, p.weight, p.cols, p.eps, p.round_bf16, p.y + r * p.cols);
    }
  });
}

}  // namespace senko::ops
#endif
