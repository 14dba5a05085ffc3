#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/experts/swiglu.cc"
#include "ops/experts/swiglu.h"

#include "hwy/foreach_target.h"
#include "numerics/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace senko::ops {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;
namespace v = numerics::HWY_NAMESPACE;

// min and max whose comparison is false for NaN, so that NaN stays.
HWY_INLINE v::F32x16 CapAbove(v::F32x16 x, float limit) {
  const auto cap = hn::Set(v::NativeF32(), limit);
  for (size_t i = 0; i < v::kParts; ++i) x.part[i] = hn::IfThenElse(hn::Gt(x.part[i], cap), cap, x.part[i]);
  return x;
}
HWY_INLINE v::F32x16 CapBelow(v::F32x16 x, float limit) {
  const auto cap = hn::Set(v::NativeF32(), limit);
  for (size_t i = 0; i < v::kParts; ++i) x.part[i] = hn::IfThenElse(hn::Lt(x.part[i], cap), cap, x.part[i]);
  return x;
}

void SwigluRowHere(const float* g, const float* u, int64_t n, float limit, float weight, bool round_bf16, float* y) {
  for (int64_t i = 0; i < n; i += 16) {
    const size_t count = static_cast<size_t>(n - i < 16 ? n - i : 16);
    v::F32x16 gate = count == 16 ? v::LoadU16(g + i) : v::LoadN16(g + i, count);
    v::F32x16 up = count == 16 ? v::LoadU16(u + i) : v::LoadN16(u + i, count);
    if (limit > 0) {
      gate = CapAbove(gate, limit);
      up = CapBelow(CapAbove(up, limit), -limit);
    }
    v::F32x16 value = v::Mul(v::Set16(weight), v::Mul(v::Silu(gate), up));
    if (round_bf16) value = v::RoundToBf16(value);
    if (count == 16) {
      v::StoreU16(value, y + i);
    } else {
      v::StoreN16(value, y + i, count);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace senko::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace senko::ops {
HWY_EXPORT(SwigluRowHere);

void SwigluRow(const float* g, const float* u, int64_t n, float limit, float weight, bool round_bf16, float* y) {
  HWY_DYNAMIC_DISPATCH(SwigluRowHere)(g, u, n, limit, weight, round_bf16, y);
}

}  // namespace senko::ops
#endif  // HWY_ONCE
