// The bf16 half of row_quantise.h. Integer arithmetic on the bits, as in bf16.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "numerics/bf16_row.cc"
#include <hwy/foreach_target.h>
// after foreach_target.h, as Highway wants it
#include <hwy/highway.h>

#include "base/check.h"
#include "numerics/bf16.h"
#include "numerics/row_quantise.h"

HWY_BEFORE_NAMESPACE();
namespace senko::numerics::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, 16>;
using BitsTag = hn::RebindToUnsigned<FloatTag>;
using CodeTag = hn::Rebind<uint16_t, FloatTag>;
constexpr FloatTag kFloats;
constexpr BitsTag kBits;

// The bf16 code of each float, in the low half of its lane.
template <class V>
HWY_INLINE V Bf16Codes(V bits) {
  const auto upper = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(upper, hn::Set(kBits, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(kBits, 0x7FFFu)), odd));
  const auto is_nan = hn::Gt(hn::And(bits, hn::Set(kBits, 0x7FFFFFFFu)), hn::Set(kBits, 0x7F800000u));
  return hn::IfThenElse(is_nan, hn::Or(upper, hn::Set(kBits, 0x0040u)), rounded);
}

void RoundBf16Impl(const float* x, int64_t n, float* y) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto codes = Bf16Codes(hn::BitCast(kBits, hn::LoadU(kFloats, x + i)));
    hn::StoreU(hn::BitCast(kFloats, hn::ShiftLeft<16>(codes)), kFloats, y + i);
  }
  for (; i < n; ++i) y[i] = RoundToBf16(x[i]);
}

void FloatToBf16Impl(const float* x, int64_t n, uint16_t* out) {
  const hn::RebindToSigned<BitsTag> signed_bits;
  const CodeTag code_tag;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto codes = Bf16Codes(hn::BitCast(kBits, hn::LoadU(kFloats, x + i)));
    // Below 2^16, so the saturating narrowing never saturates.
    hn::StoreU(hn::DemoteTo(code_tag, hn::BitCast(signed_bits, codes)), code_tag, out + i);
  }
  for (; i < n; ++i) out[i] = FloatToBf16(x[i]);
}

void Bf16ToFloatImpl(const uint16_t* codes, int64_t n, float* x) {
  const CodeTag code_tag;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto bits = hn::ShiftLeft<16>(hn::PromoteTo(kBits, hn::LoadU(code_tag, codes + i)));
    hn::StoreU(hn::BitCast(kFloats, bits), kFloats, x + i);
  }
  for (; i < n; ++i) x[i] = Bf16ToFloat(codes[i]);
}

}  // namespace
}  // namespace senko::numerics::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace senko::numerics {

HWY_EXPORT(RoundBf16Impl);
HWY_EXPORT(FloatToBf16Impl);
HWY_EXPORT(Bf16ToFloatImpl);

void RoundBf16Row(const float* x, int64_t n, float* y) {
  SENKO_CHECK(n >= 0);
  HWY_DYNAMIC_DISPATCH(RoundBf16Impl)(x, n, y);
}

void FloatToBf16Row(const float* x, int64_t n, uint16_t* codes) {
  SENKO_CHECK(n >= 0);
  HWY_DYNAMIC_DISPATCH(FloatToBf16Impl)(x, n, codes);
}

void Bf16ToFloatRow(const uint16_t* codes, int64_t n, float* x) {
  SENKO_CHECK(n >= 0);
  HWY_DYNAMIC_DISPATCH(Bf16ToFloatImpl)(codes, n, x);
}

}  // namespace senko::numerics
#endif
