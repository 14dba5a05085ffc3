// Packed keys to float tiles, in the two shapes the kernels read. Values are those of numerics::Dequantise*, bit for
// bit (a zero may lose its sign). Included once per target.
#if defined(SENKO_OPS_ATTENTION_KEY_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SENKO_OPS_ATTENTION_KEY_TILES_INL_H_
#undef SENKO_OPS_ATTENTION_KEY_TILES_INL_H_
#else
#define SENKO_OPS_ATTENTION_KEY_TILES_INL_H_
#endif

#include "numerics/simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace senko::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace v = numerics::HWY_NAMESPACE;

inline constexpr int64_t kPanel = 32;  // keys of a score panel, and channels of a value panel

using NativeU8 = hn::Rebind<uint8_t, v::NativeF32>;
using NativeI16 = hn::Rebind<int16_t, v::NativeF32>;
using NativeU16 = hn::Rebind<uint16_t, v::NativeF32>;
using NativeF16 = hn::Rebind<hwy::float16_t, v::NativeF32>;

// Sixteen e4m3 codes. Shifted into a half's fields a code is its value times 2^-8, subnormals included.
HWY_INLINE v::F32x16 E4m3Values16(const uint8_t* codes) {
  v::F32x16 r;
  const NativeI16 i16;
  for (size_t i = 0; i < v::kParts; ++i) {
    const auto wide = hn::PromoteTo(NativeU16(), hn::LoadU(NativeU8(), codes + i * v::kNativeLanes));
    const auto shifted = hn::ShiftRight<1>(hn::BitCast(i16, hn::ShiftLeft<8>(wide)));  // copies the sign to bit 14
    const auto half = hn::And(shifted, hn::Set(i16, static_cast<int16_t>(0xBF80u)));
    const auto top = hn::Set(i16, int16_t{0x3F80});
    const auto is_nan = hn::Eq(hn::And(half, top), top);
    const auto bits = hn::Or(half, hn::IfThenElseZero(is_nan, hn::Set(i16, int16_t{0x7C00})));
    const auto value = hn::PromoteTo(v::NativeF32(), hn::BitCast(NativeF16(), bits));
    r.part[i] = hn::Mul(value, hn::Set(v::NativeF32(), 256.0f));
  }
  return r;
}

// Sixteen ue8m0 codes: 2^(code - 127), 0 a subnormal, 255 NaN.
HWY_INLINE v::F32x16 Ue8m0Values16(const uint8_t* codes) {
  v::F32x16 r;
  const v::NativeU32 u32;
  for (size_t i = 0; i < v::kParts; ++i) {
    const auto code = hn::PromoteTo(u32, hn::LoadU(NativeU8(), codes + i * v::kNativeLanes));
    auto bits = hn::ShiftLeft<23>(code);
    bits = hn::IfThenElse(hn::Eq(code, hn::Zero(u32)), hn::Set(u32, 0x00400000u), bits);
    bits = hn::IfThenElse(hn::Eq(code, hn::Set(u32, 255u)), hn::Set(u32, 0x7FC00000u), bits);
    r.part[i] = hn::BitCast(v::NativeF32(), bits);
  }
  return r;
}

// Sixteen e2m1 codes 0..15, one a byte.
HWY_INLINE v::F32x16 E2m1Values16(const uint8_t* codes) {
  v::F32x16 r;
  const v::NativeF32 f32;
  const v::NativeU32 u32;
#if HWY_TARGET == HWY_AVX3
  alignas(64) static constexpr float kTable[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};
  const auto code = hn::PromoteTo(u32, hn::LoadU(NativeU8(), codes));
  r.part[0] = hn::TableLookupLanes(hn::Load(f32, kTable), hn::IndicesFromVec(f32, code));
#else
  for (size_t i = 0; i < v::kParts; ++i) {
    const auto code = hn::PromoteTo(u32, hn::LoadU(NativeU8(), codes + i * v::kNativeLanes));
    const auto magnitude = hn::And(code, hn::Set(u32, 7u));
    const auto sign = hn::ShiftLeft<28>(hn::And(code, hn::Set(u32, 8u)));
    const auto normal = hn::Add(hn::ShiftLeft<22>(magnitude), hn::Set(u32, 126u << 23));
    const auto half = hn::And(hn::Sub(hn::Zero(u32), magnitude), hn::Set(u32, 0x3F000000u));  // 0 -> 0, 1 -> 0.5
    const auto bits = hn::IfThenElse(hn::Lt(magnitude, hn::Set(u32, 2u)), half, normal);
    r.part[i] = hn::BitCast(f32, hn::Or(bits, sign));
  }
#endif
  return r;
}

#if HWY_TARGET != HWY_SCALAR
using Bytes = hn::Full128<uint8_t>;
#endif

// columns[16 c + k] = byte c of row k, for 16 bytes of 16 rows. Each round moves the top bit of the row's number to
// the bottom of the column's, so four rounds exchange them.
HWY_INLINE void TransposeBytes16(const uint8_t* const* rows, int64_t offset, uint8_t* columns) {
#if HWY_TARGET == HWY_SCALAR
  for (int c = 0; c < 16; ++c) {
    for (int k = 0; k < 16; ++k) columns[16 * c + k] = rows[k][offset + c];
  }
#else
  const Bytes d;
  hn::Vec<Bytes> a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = hn::LoadU(d, rows[i] + offset);
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 8; ++i) {
      b[2 * i] = hn::InterleaveLower(d, a[i], a[i + 8]);
      b[2 * i + 1] = hn::InterleaveUpper(d, a[i], a[i + 8]);
    }
    for (int i = 0; i < 8; ++i) {
      a[2 * i] = hn::InterleaveLower(d, b[i], b[i + 8]);
      a[2 * i + 1] = hn::InterleaveUpper(d, b[i], b[i + 8]);
    }
  }
  for (int i = 0; i < 16; ++i) hn::Store(a[i], d, columns + 16 * i);
#endif
}

// codes[32] = the nibbles of 16 bytes, low first.
HWY_INLINE void UnpackNibbles16(const uint8_t* packed, uint8_t* codes) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < 16; ++i) {
    codes[2 * i] = packed[i] & 0xF;
    codes[2 * i + 1] = packed[i] >> 4;
  }
#else
  const Bytes d;
  const auto pair = hn::LoadU(d, packed);
  const auto low = hn::And(pair, hn::Set(d, uint8_t{0xF}));
  const auto high = hn::ShiftRight<4>(pair);
  hn::Store(hn::InterleaveLower(d, low, high), d, codes);
  hn::Store(hn::InterleaveUpper(d, low, high), d, codes + 16);
#endif
}

// Score panels: out[d * kPanel + k] = channel d of key k, for 16 window rows.
HWY_INLINE void WindowKeysByChannel(const uint8_t* const* rows, int64_t dim, float* out) {
  HWY_ALIGN uint8_t codes[256], scale_codes[256];
  v::F32x16 scale = v::Zero16();
  for (int64_t at = 0; at < dim; at += 16) {
    if (at % (32 * 16) == 0) TransposeBytes16(rows, dim + at / 32, scale_codes);
    if (at % 32 == 0) scale = Ue8m0Values16(scale_codes + at / 32 % 16 * 16);
    TransposeBytes16(rows, at, codes);
    for (int64_t c = 0; c < 16; ++c) v::Store16(v::Mul(E4m3Values16(codes + 16 * c), scale), out + (at + c) * kPanel);
  }
}

// The same for 16 entries.
HWY_INLINE void EntryKeysByChannel(const uint8_t* const* rows, int64_t dim, float* out) {
  HWY_ALIGN uint8_t codes[256], low[256], high[256], scale_codes[256];
  for (int64_t at = 0; at < dim / 2; at += 16) {  // bytes, two channels each
    if (at % 128 == 0) TransposeBytes16(rows, dim / 2 + at / 8, scale_codes);
    TransposeBytes16(rows, at, codes);
    for (int i = 0; i < 256; ++i) {
      low[i] = codes[i] & 0xF;
      high[i] = codes[i] >> 4;
    }
    for (int64_t c = 0; c < 16; c += 8) {
      const v::F32x16 scale = E4m3Values16(scale_codes + (at + c) / 8 % 16 * 16);
      for (int64_t i = c; i < c + 8; ++i) {
        float* to = out + 2 * (at + i) * kPanel;
        v::Store16(v::Mul(E2m1Values16(low + 16 * i), scale), to);
        v::Store16(v::Mul(E2m1Values16(high + 16 * i), scale), to + kPanel);
      }
    }
  }
}

// Value panels: out[c] = channel d + c of one window row, 32 of them; d is a multiple of 32.
HWY_INLINE void WindowValues32(const uint8_t* row, int64_t d, float scale, float* out) {
  const v::F32x16 s = v::Set16(scale);
  v::Store16(v::Mul(E4m3Values16(row + d), s), out);
  v::Store16(v::Mul(E4m3Values16(row + d + 16), s), out + 16);
}

// The same of one entry, with the scales of its two blocks.
HWY_INLINE void EntryValues32(const uint8_t* row, int64_t d, float scale0, float scale1, float* out) {
  HWY_ALIGN uint8_t codes[32];
  UnpackNibbles16(row + d / 2, codes);
  v::Store16(v::Mul(E2m1Values16(codes), v::Set16(scale0)), out);
  v::Store16(v::Mul(E2m1Values16(codes + 16), v::Set16(scale1)), out + 16);
}

}  // namespace senko::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
