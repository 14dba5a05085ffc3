// The rotation of interleaved pairs, eight at a time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/norm/rope_rotate.cc"
#include <hwy/foreach_target.h>
// after foreach_target.h, as Highway wants it
#include "numerics/bf16.h"
#include "numerics/simd/lanes-inl.h"
#include "ops/norm/norm.h"

HWY_BEFORE_NAMESPACE();
namespace senko::ops::HWY_NAMESPACE {
namespace {

namespace v = numerics::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR
void Rotate(float* x, const float* table_row, int64_t pairs, bool inverse, bool round_bf16) {
  for (int64_t n = 0; n < pairs; ++n) {
    const float c = table_row[2 * n];
    const float s = inverse ? -table_row[2 * n + 1] : table_row[2 * n + 1];
    const float a = x[2 * n];
    const float b = x[2 * n + 1];
    const float re = a * c - b * s;
    const float im = a * s + b * c;
    x[2 * n] = round_bf16 ? numerics::RoundToBf16(re) : re;
    x[2 * n + 1] = round_bf16 ? numerics::RoundToBf16(im) : im;
  }
}
#else
// The plain loop must not be compiled for targets with fused multiply-add: gcc 12 makes a vector of its
// alternating sum and difference fused (vfmaddsub) even under -ffp-contract=off.
void Rotate(float* x, const float* table_row, int64_t pairs, bool inverse, bool round_bf16) {
  namespace hn = hwy::HWY_NAMESPACE;
  const v::NativeF32 d;
  const auto sign = hn::OddEven(hn::Set(d, inverse ? -1.0f : 1.0f), hn::Set(d, inverse ? 1.0f : -1.0f));
  for (int64_t i = 0; i < 2 * pairs; i += 16) {
    const auto left = static_cast<size_t>(2 * pairs - i);
    v::F32x16 value = left >= 16 ? v::LoadU16(x + i) : v::LoadN16(x + i, left);
    const v::F32x16 table = left >= 16 ? v::LoadU16(table_row + i) : v::LoadN16(table_row + i, left);
    // (a, b) with its swap (b, a): re = a c + b (-s), im = b c + a s, the same float32 values as the plain
    // formula.
    for (size_t k = 0; k < v::kParts; ++k) {
      const auto sine = hn::Mul(hn::DupOdd(table.part[k]), sign);
      const auto straight = hn::Mul(value.part[k], hn::DupEven(table.part[k]));
      value.part[k] = hn::Add(straight, hn::Mul(hn::Shuffle2301(value.part[k]), sine));
    }
    if (round_bf16) value = v::RoundToBf16(value);
    if (left >= 16) {
      v::StoreU16(value, x + i);
    } else {
      v::StoreN16(value, x + i, left);
    }
  }
}
#endif

}  // namespace
}  // namespace senko::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace senko::ops {

HWY_EXPORT(Rotate);

void RopeRotate(float* x, const float* table_row, int64_t pairs, bool inverse, bool round_bf16) {
  HWY_DYNAMIC_DISPATCH(Rotate)(x, table_row, pairs, inverse, round_bf16);
}

}  // namespace senko::ops
#endif
