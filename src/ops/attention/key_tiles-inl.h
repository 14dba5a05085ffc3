// Packed keys to float tiles, in the two shapes the kernels read. Values are those of numerics::Dequantise*,
// bit for bit (a zero may lose its sign). Included once per target.
#if defined(SENKO_OPS_ATTENTION_KEY_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SENKO_OPS_ATTENTION_KEY_TILES_INL_H_
#undef SENKO_OPS_ATTENTION_KEY_TILES_INL_H_
#else
#define SENKO_OPS_ATTENTION_KEY_TILES_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "numerics/e4m3.h"
#include "numerics/simd/lanes-inl.h"
#include "numerics/ue8m0.h"
#include "ops/attention/key_rows.h"

HWY_BEFORE_NAMESPACE();
namespace senko::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace v = numerics::HWY_NAMESPACE;

using NativeU8 = hn::Rebind<uint8_t, v::NativeF32>;
#if HWY_TARGET != HWY_SCALAR
using Bytes = hn::Full128<uint8_t>;
using NativeI16 = hn::Rebind<int16_t, v::NativeF32>;
using NativeU16 = hn::Rebind<uint16_t, v::NativeF32>;
using NativeF16 = hn::Rebind<hwy::float16_t, v::NativeF32>;
#endif

// Sixteen e4m3 codes. Shifted into a half's fields a code is its value times 2^-8, subnormals included.
HWY_INLINE v::F32x16 E4m3Values16(const uint8_t* codes) {
  v::F32x16 r;
#if HWY_TARGET == HWY_SCALAR
  for (size_t i = 0; i < 16; ++i) r.part[i] = hn::Set(v::NativeF32(), numerics::E4m3ToFloat(codes[i]));
#else
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
#endif
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

// Sixteen 32-bit lanes.
struct Words16 {
  hn::Vec<v::NativeU32> part[v::kParts];
};

// The e2m1 code in the low four bits of each lane; the other bits are ignored.
HWY_INLINE v::F32x16 E2m1Values16(Words16 codes) {
  v::F32x16 r;
  const v::NativeF32 f32;
#if HWY_TARGET == HWY_AVX3
  alignas(64) static constexpr float kTable[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};
  r.part[0].raw = _mm512_permutexvar_ps(codes.part[0].raw, hn::Load(f32, kTable).raw);
#else
  const v::NativeU32 u32;
  for (size_t i = 0; i < v::kParts; ++i) {
    const auto sign = hn::And(hn::ShiftLeft<28>(codes.part[i]), hn::Set(u32, 0x80000000u));
#if HWY_TARGET == HWY_AVX2
    alignas(32) static constexpr float kTable[8] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
    hn::Vec<v::NativeF32> magnitude;
    magnitude.raw = _mm256_permutevar8x32_ps(hn::Load(f32, kTable).raw, codes.part[i].raw);
    r.part[i] = hn::BitCast(f32, hn::Or(hn::BitCast(u32, magnitude), sign));
#else
    const auto code = hn::And(codes.part[i], hn::Set(u32, 7u));
    const auto normal = hn::Add(hn::ShiftLeft<22>(code), hn::Set(u32, 126u << 23));
    const auto half = hn::And(hn::Sub(hn::Zero(u32), code), hn::Set(u32, 0x3F000000u));  // 0 -> 0, 1 -> 0.5
    const auto magnitude = hn::IfThenElse(hn::Lt(code, hn::Set(u32, 2u)), half, normal);
    r.part[i] = hn::BitCast(f32, hn::Or(magnitude, sign));
#endif
  }
#endif
  return r;
}

// columns[16 c + k] = byte c of row k, for 16 bytes of 16 rows. Each round moves the top bit of the row's
// number to the bottom of the column's, so four rounds exchange them.
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

// words[16 c + k] = 32-bit word c of row k, for 16 bytes of 16 rows.
HWY_INLINE void TransposeWords16(const uint8_t* const* rows, int64_t offset, uint32_t* words) {
#if HWY_TARGET == HWY_SCALAR
  for (int k = 0; k < 16; ++k) {
    for (int c = 0; c < 4; ++c) std::memcpy(&words[16 * c + k], rows[k] + offset + 4 * c, 4);
  }
#else
  const hn::Full128<uint32_t> d;
  const hn::Full128<uint64_t> d64;
  const auto load = [&](int k) HWY_ATTR { return hn::BitCast(d, hn::LoadU(Bytes(), rows[k] + offset)); };
  const auto store = [&](auto pairs, int at) HWY_ATTR { hn::Store(hn::BitCast(d, pairs), d, words + at); };
  for (int k = 0; k < 16; k += 4) {
    const auto a = load(k), b = load(k + 1), c = load(k + 2), e = load(k + 3);
    const auto ab = hn::BitCast(d64, hn::InterleaveLower(d, a, b)), ce = hn::BitCast(d64, hn::InterleaveLower(d, c, e));
    store(hn::InterleaveLower(d64, ab, ce), k);
    store(hn::InterleaveUpper(d64, ab, ce), 16 + k);
    const auto ab2 = hn::BitCast(d64, hn::InterleaveUpper(d, a, b)),
               ce2 = hn::BitCast(d64, hn::InterleaveUpper(d, c, e));
    store(hn::InterleaveLower(d64, ab2, ce2), 32 + k);
    store(hn::InterleaveUpper(d64, ab2, ce2), 48 + k);
  }
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

// The same for 16 entries. A 32-bit word holds eight channels of a key, half a scale's block.
HWY_INLINE void EntryKeysByChannel(const uint8_t* const* rows, int64_t dim, float* out) {
  HWY_ALIGN uint8_t scale_codes[256];
  HWY_ALIGN uint32_t words[64];
  v::F32x16 scale = v::Zero16();
  for (int64_t at = 0; at < dim / 2; at += 16) {  // bytes
    if (at % 128 == 0) TransposeBytes16(rows, dim / 2 + at / 8, scale_codes);
    TransposeWords16(rows, at, words);
    for (int64_t c = 0; c < 4; ++c) {
      if (c % 2 == 0) scale = E4m3Values16(scale_codes + (at / 8 + c / 2) % 16 * 16);
      Words16 codes;
      for (size_t i = 0; i < v::kParts; ++i) {
        codes.part[i] = hn::Load(v::NativeU32(), words + 16 * c + static_cast<int64_t>(i * v::kNativeLanes));
      }
      float* to = out + (2 * at + 8 * c) * kPanel;
      for (int64_t j = 0; j < 8; ++j) {
        v::Store16(v::Mul(E2m1Values16(codes), scale), to + j * kPanel);
        for (size_t i = 0; i < v::kParts; ++i) codes.part[i] = hn::ShiftRight<4>(codes.part[i]);
      }
    }
  }
}

// Sixteen channels of an entry from their eight bytes.
HWY_INLINE v::F32x16 EntryValues16(const uint8_t* packed, float scale) {
  alignas(64) static constexpr uint32_t kShifts[16] = {0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28};
  const v::NativeU32 u32;
  uint32_t low, high;
  std::memcpy(&low, packed, 4);
  std::memcpy(&high, packed + 4, 4);
  Words16 codes;
  for (size_t i = 0; i < v::kParts; ++i) {
    const size_t lane = i * v::kNativeLanes;
    auto word = hn::Set(u32, lane < 8 ? low : high);
#if HWY_TARGET == HWY_AVX3
    word.raw = _mm512_mask_set1_epi32(word.raw, 0xFF00, static_cast<int>(high));
#endif
    codes.part[i] = hn::Shr(word, hn::Load(u32, kShifts + lane));
  }
  return v::Mul(E2m1Values16(codes), v::Set16(scale));
}

// Value panels: channels d .. d + 31 of `count` window rows, out[k * kPanel + c]. d is a multiple of 32.
HWY_INLINE void WindowValues(const uint8_t* const* rows, int64_t count, int64_t dim, int64_t d, float* out) {
  for (int64_t k = 0; k < count; ++k, out += kPanel) {
    const uint8_t* row = rows[k];
    const v::F32x16 scale = v::Set16(numerics::Ue8m0ToFloat(row[dim + d / 32]));
    v::Store16(v::Mul(E4m3Values16(row + d), scale), out);
    v::Store16(v::Mul(E4m3Values16(row + d + 16), scale), out + 16);
  }
}

// The same of entries. e4m3 gives the value of a scale's code (FillE4m3Table).
HWY_INLINE void EntryValues(const uint8_t* const* rows, int64_t count, int64_t dim, int64_t d, const float* e4m3,
                            float* out) {
  for (int64_t k = 0; k < count; ++k, out += kPanel) {
    const uint8_t* row = rows[k];
    const uint8_t* scales = row + dim / 2 + d / 16;
    v::Store16(EntryValues16(row + d / 2, e4m3[scales[0]]), out);
    v::Store16(EntryValues16(row + d / 2 + 8, e4m3[scales[1]]), out + 16);
  }
}

// table[256]: every e4m3 code's value.
HWY_INLINE void FillE4m3Table(float* table) {
  HWY_ALIGN uint8_t codes[16];
  for (int i = 0; i < 256; i += 16) {
    for (int j = 0; j < 16; ++j) codes[j] = static_cast<uint8_t>(i + j);
    v::Store16(E4m3Values16(codes), table + i);
  }
}

}  // namespace senko::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
