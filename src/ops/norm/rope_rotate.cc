// The rotation of interleaved pairs, eight pairs at a time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/norm/rope_rotate.cc"
#include <hwy/foreach_target.h>
// after foreach_target.h, as Highway wants it
#include "numerics/simd/lanes-inl.h"

#include "numerics/bf16.h"
#include "ops/norm/norm.h"

HWY_BEFORE_NAMESPACE();
namespace senko::ops::HWY_NAMESPACE {
namespace {

namespace v = numerics::HWY_NAMESPACE;

void Rotate(float* x, const float* table_row, int64_t pairs, bool inverse, bool round_bf16) {
  int64_t n = 0;
#if HWY_TARGET != HWY_SCALAR
  namespace hn = hwy::HWY_NAMESPACE;
  const v::NativeF32 d;
  // x = (a, b), its swap (b, a): re = a c + b (-s), im = b c + a s, the same float32 values as the plain formula.
  const auto minus_odd = hn::Set(d, inverse ? -1.0f : 1.0f), minus_even = hn::Set(d, inverse ? 1.0f : -1.0f);
  const auto sign = hn::OddEven(minus_odd, minus_even);
  for (; n + 8 <= pairs; n += 8) {
    v::F32x16 out;
    for (size_t i = 0; i < v::kParts; ++i) {
      const size_t at = static_cast<size_t>(2 * n) + i * v::kNativeLanes;
      const auto table = hn::LoadU(d, table_row + at);
      const auto value = hn::LoadU(d, x + at);
      const auto sine = hn::Mul(hn::DupOdd(table), sign);
      out.part[i] = hn::Add(hn::Mul(value, hn::DupEven(table)), hn::Mul(hn::Shuffle2301(value), sine));
    }
    v::StoreU16(round_bf16 ? v::RoundToBf16(out) : out, x + 2 * n);
  }
#endif
  for (; n < pairs; ++n) {
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
