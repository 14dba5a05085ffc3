// Hyper-connections over rows: one pass over the streams for each of mix, collapse and expand.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/mhc/mhc_cpu.cc"
#include <hwy/foreach_target.h>
// after foreach_target.h, as Highway wants it
#include <algorithm>

#include "base/check.h"
#include "ops/canonical_sum-inl.h"
#include "ops/mhc/mhc.h"
#include "ops/mhc/mix_coefficients.h"
#include "ops/norm/rms_row.h"

HWY_BEFORE_NAMESPACE();
namespace senko::ops::HWY_NAMESPACE {
namespace {

namespace v = numerics::HWY_NAMESPACE;

float StreamSquares(const float* x, int64_t n) { return SumOfSquares(x, n); }

HWY_INLINE void StoreUpTo16(v::F32x16 a, bool round_bf16, float* p, int64_t n) {
  if (round_bf16) a = v::RoundToBf16(a);
  if (n >= 16) {
    v::StoreU16(a, p);
  } else {
    v::StoreN16(a, p, static_cast<size_t>(n));
  }
}

// kHc = 0: the stream count is known at run time only.
template <int64_t kHc>
HWY_INLINE void CollapseStreams(const MhcCollapseParams& p, int64_t row) {
  const int64_t hc = kHc > 0 ? kHc : p.streams;
  const float* x = p.x + row * hc * p.hidden;
  float* y = p.y + row * p.hidden;
  v::F32x16 pre[kMaxStreams];
  for (int64_t j = 0; j < hc; ++j) pre[j] = v::Set16(p.pre[row * hc + j]);
  for (int64_t c = 0; c < p.hidden; c += 16) {
    const int64_t left = p.hidden - c;
    v::F32x16 sum = v::Zero16();
    for (int64_t j = 0; j < hc; ++j) sum = v::MulAdd(pre[j], LoadUpTo16(x + j * p.hidden + c, left), sum);
    StoreUpTo16(sum, p.round_bf16, y + c, left);
  }
}

void CollapseRow(const MhcCollapseParams& p, int64_t row) {
  if (p.streams == 4) {
    CollapseStreams<4>(p, row);
  } else {
    CollapseStreams<0>(p, row);
  }
}

template <int64_t kHc>
HWY_INLINE void ExpandStreams(const MhcExpandParams& p, int64_t row) {
  const int64_t hc = kHc > 0 ? kHc : p.streams;
  const float* y = p.y + row * p.hidden;
  float* x = p.x + row * hc * p.hidden;
  const float* comb = p.comb + row * hc * hc;
  for (int64_t c = 0; c < p.hidden; c += 16) {
    const int64_t left = p.hidden - c;
    v::F32x16 stream[kMaxStreams];
    for (int64_t j = 0; j < hc; ++j) stream[j] = LoadUpTo16(x + j * p.hidden + c, left);
    const v::F32x16 update = LoadUpTo16(y + c, left);
    for (int64_t k = 0; k < hc; ++k) {
      v::F32x16 sum = v::Mul(v::Set16(p.post[row * hc + k]), update);
      for (int64_t j = 0; j < hc; ++j) sum = v::MulAdd(v::Set16(comb[j * hc + k]), stream[j], sum);
      StoreUpTo16(sum, p.round_bf16, x + k * p.hidden + c, left);
    }
  }
}

void ExpandRow(const MhcExpandParams& p, int64_t row) {
  if (p.streams == 4) {
    ExpandStreams<4>(p, row);
  } else {
    ExpandStreams<0>(p, row);
  }
}

}  // namespace
}  // namespace senko::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace senko::ops {

HWY_EXPORT(StreamSquares);
HWY_EXPORT(CollapseRow);
HWY_EXPORT(ExpandRow);

namespace {

// Rows that are worth waking a thread for.
int64_t RowGrain(int64_t floats_per_row) { return std::max<int64_t>(1, 32768 / std::max<int64_t>(1, floats_per_row)); }

}  // namespace

void MhcMixCpu(const MhcMixParams& p, ThreadPool& pool) {
  const int64_t hc = p.streams, outputs = (2 + hc) * hc, width = hc * p.hidden;
  SENKO_CHECK(hc >= 1 && hc <= kMaxStreams && p.sinkhorn_iters >= 1 && p.fn.out == outputs && p.fn.in == width);
  LinearCpu({p.rows, p.x, width, p.fn, p.mixes, outputs, /*round_bf16=*/false}, pool);
  const auto squares = HWY_DYNAMIC_DISPATCH(StreamSquares);
  pool.ParallelFor(p.rows, RowGrain(width), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) MixCoefficients(p, row, squares(p.x + row * width, width));
  });
}

void MhcCollapseCpu(const MhcCollapseParams& p, ThreadPool& pool) {
  SENKO_CHECK(p.streams >= 1 && p.streams <= kMaxStreams);
  const auto collapse = HWY_DYNAMIC_DISPATCH(CollapseRow);
  pool.ParallelFor(p.rows, RowGrain(p.streams * p.hidden), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      collapse(p, row);
      float* y = p.y + row * p.hidden;
      if (p.norm_weight != nullptr) RmsNormRowCpu(y, p.norm_weight, p.hidden, p.rms_eps, p.round_bf16, y);
    }
  });
}

void MhcExpandCpu(const MhcExpandParams& p, ThreadPool& pool) {
  SENKO_CHECK(p.streams >= 1 && p.streams <= kMaxStreams);
  const auto expand = HWY_DYNAMIC_DISPATCH(ExpandRow);
  pool.ParallelFor(p.rows, RowGrain(p.streams * p.hidden), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) expand(p, row);
  });
}

}  // namespace senko::ops
#endif
