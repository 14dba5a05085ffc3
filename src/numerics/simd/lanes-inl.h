// F32x16: sixteen float32 lanes on every target (one zmm, two ymm, four 128-bit vectors, or plain scalars), so that
// an operator written once sums in the same order everywhere. README.md shows how an operator uses it.
//
// Lane order and ReduceSum's tree are part of the canonical arithmetic: AVX2 and AVX-512 give identical bits. The
// portable target has no fused multiply-add, so its bits may differ from theirs.
//
// Included once per target (no ordinary include guard).
#if defined(SENKO_NUMERICS_SIMD_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SENKO_NUMERICS_SIMD_LANES_INL_H_
#undef SENKO_NUMERICS_SIMD_LANES_INL_H_
#else
#define SENKO_NUMERICS_SIMD_LANES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace senko::numerics {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The native vector an F32x16 is made of, at most 16 lanes.
using NativeF32 = hn::CappedTag<float, 16>;
using NativeU32 = hn::RebindToUnsigned<NativeF32>;
inline constexpr size_t kNativeLanes = hn::MaxLanes(NativeF32());
inline constexpr size_t kParts = 16 / kNativeLanes;

// Lane i lives in part[i / kNativeLanes], lane i % kNativeLanes.
struct F32x16 {
  hn::Vec<NativeF32> part[kParts];
};

HWY_INLINE F32x16 Zero16() {
  F32x16 r;
  for (size_t i = 0; i < kParts; ++i) r.part[i] = hn::Zero(NativeF32());
  return r;
}

HWY_INLINE F32x16 Set16(float x) {
  F32x16 r;
  for (size_t i = 0; i < kParts; ++i) r.part[i] = hn::Set(NativeF32(), x);
  return r;
}

// p is 64-byte aligned.
HWY_INLINE F32x16 Load16(const float* HWY_RESTRICT p) {
  F32x16 r;
  for (size_t i = 0; i < kParts; ++i) r.part[i] = hn::Load(NativeF32(), p + i * kNativeLanes);
  return r;
}

// p has any alignment that a float may have.
HWY_INLINE F32x16 LoadU16(const float* HWY_RESTRICT p) {
  F32x16 r;
  for (size_t i = 0; i < kParts; ++i) r.part[i] = hn::LoadU(NativeF32(), p + i * kNativeLanes);
  return r;
}

// The first n <= 16 floats, zero in the other lanes; reads nothing past p + n.
HWY_INLINE F32x16 LoadN16(const float* HWY_RESTRICT p, size_t n) {
  alignas(64) float lanes[16] = {};
  std::memcpy(lanes, p, n * sizeof(float));
  return Load16(lanes);
}

HWY_INLINE void Store16(F32x16 a, float* HWY_RESTRICT p) {
  for (size_t i = 0; i < kParts; ++i) hn::Store(a.part[i], NativeF32(), p + i * kNativeLanes);
}

HWY_INLINE void StoreU16(F32x16 a, float* HWY_RESTRICT p) {
  for (size_t i = 0; i < kParts; ++i) hn::StoreU(a.part[i], NativeF32(), p + i * kNativeLanes);
}

// Writes the first n <= 16 lanes only.
HWY_INLINE void StoreN16(F32x16 a, float* HWY_RESTRICT p, size_t n) {
  alignas(64) float lanes[16];
  Store16(a, lanes);
  std::memcpy(p, lanes, n * sizeof(float));
}

HWY_INLINE F32x16 Add(F32x16 a, F32x16 b) {
  for (size_t i = 0; i < kParts; ++i) a.part[i] = hn::Add(a.part[i], b.part[i]);
  return a;
}

HWY_INLINE F32x16 Sub(F32x16 a, F32x16 b) {
  for (size_t i = 0; i < kParts; ++i) a.part[i] = hn::Sub(a.part[i], b.part[i]);
  return a;
}

HWY_INLINE F32x16 Mul(F32x16 a, F32x16 b) {
  for (size_t i = 0; i < kParts; ++i) a.part[i] = hn::Mul(a.part[i], b.part[i]);
  return a;
}

// IEEE division.
HWY_INLINE F32x16 Div(F32x16 a, F32x16 b) {
  for (size_t i = 0; i < kParts; ++i) a.part[i] = hn::Div(a.part[i], b.part[i]);
  return a;
}

// a * b + c, rounded once where the target has FMA (all but the portable one).
HWY_INLINE F32x16 MulAdd(F32x16 a, F32x16 b, F32x16 c) {
  for (size_t i = 0; i < kParts; ++i) c.part[i] = hn::MulAdd(a.part[i], b.part[i], c.part[i]);
  return c;
}

// A NaN in either operand gives a value that depends on the target: check for NaN elsewhere.
HWY_INLINE F32x16 Max(F32x16 a, F32x16 b) {
  for (size_t i = 0; i < kParts; ++i) a.part[i] = hn::Max(a.part[i], b.part[i]);
  return a;
}

HWY_INLINE F32x16 Min(F32x16 a, F32x16 b) {
  for (size_t i = 0; i < kParts; ++i) a.part[i] = hn::Min(a.part[i], b.part[i]);
  return a;
}

// Sixteen stored floats or bf16 values at any address, odd ones included. The portable target loads value by value, for
// which C++ wants alignment, so it goes through a copy.
HWY_INLINE F32x16 LoadStored16(const void* HWY_RESTRICT p) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  alignas(64) float copy[16];
  std::memcpy(copy, p, sizeof(copy));
  return Load16(copy);
#else
  return LoadU16(static_cast<const float*>(p));
#endif
}

HWY_INLINE F32x16 LoadBf16x16(const void* HWY_RESTRICT p) {
  const hn::Rebind<uint16_t, NativeF32> d16;
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  alignas(64) uint16_t codes[16];
  std::memcpy(codes, p, sizeof(codes));
#else
  const uint16_t* const codes = static_cast<const uint16_t*>(p);
#endif
  F32x16 r;
  for (size_t i = 0; i < kParts; ++i) {
    const auto half = hn::LoadU(d16, codes + i * kNativeLanes);
    r.part[i] = hn::BitCast(NativeF32(), hn::ShiftLeft<16>(hn::PromoteTo(NativeU32(), half)));
  }
  return r;
}

// The nearest bf16 value of each lane (numerics::RoundToBf16, NaN included).
HWY_INLINE F32x16 RoundToBf16(F32x16 a) {
  const NativeF32 df;
  const NativeU32 du;
  for (size_t i = 0; i < kParts; ++i) {
    const auto bits = hn::BitCast(du, a.part[i]);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFFu)));
    const auto quiet = hn::Or(bits, hn::Set(du, 0x00400000u));
    const auto is_nan = hn::RebindMask(du, hn::IsNaN(a.part[i]));
    const auto chosen = hn::IfThenElse(is_nan, quiet, rounded);
    a.part[i] = hn::BitCast(df, hn::And(chosen, hn::Set(du, 0xFFFF0000u)));
  }
  return a;
}

// The canonical tree: lanes i and i + 8, then i and i + 4, i and i + 2, i and i + 1.
HWY_INLINE float ReduceSum(F32x16 a) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
#if HWY_TARGET == HWY_AVX3
  const __m512 v = a.part[0].raw;
  const __m256 h8 = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
#else
  const __m256 h8 = _mm256_add_ps(a.part[0].raw, a.part[1].raw);
#endif
  const __m128 h4 = _mm_add_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
  const __m128 h2 = _mm_add_ps(h4, _mm_movehl_ps(h4, h4));
  return _mm_cvtss_f32(_mm_add_ss(h2, _mm_shuffle_ps(h2, h2, 1)));
#else
  alignas(64) float t[16];
  Store16(a, t);
  for (size_t width = 8; width > 0; width /= 2) {
    for (size_t i = 0; i < width; ++i) t[i] += t[i + width];
  }
  return t[0];
#endif
}

// sums[i] = ReduceSum(a[i]) for four vectors, for about half the instructions.
HWY_INLINE void ReduceSum4(const F32x16* HWY_RESTRICT a, float* HWY_RESTRICT sums) {
#if HWY_TARGET == HWY_AVX3
  const __m512 a0 = a[0].part[0].raw, a1 = a[1].part[0].raw, a2 = a[2].part[0].raw, a3 = a[3].part[0].raw;
  const __m512 h01 = _mm512_add_ps(_mm512_shuffle_f32x4(a0, a1, 0x44), _mm512_shuffle_f32x4(a0, a1, 0xEE));
  const __m512 h23 = _mm512_add_ps(_mm512_shuffle_f32x4(a2, a3, 0x44), _mm512_shuffle_f32x4(a2, a3, 0xEE));
  const __m512 q = _mm512_add_ps(_mm512_shuffle_f32x4(h01, h23, 0x88), _mm512_shuffle_f32x4(h01, h23, 0xDD));
  const __m512 d = _mm512_add_ps(q, _mm512_permute_ps(q, 0x4E));
  const __m512 s = _mm512_add_ps(d, _mm512_permute_ps(d, 0xB1));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm_storeu_ps(sums, _mm512_castps512_ps128(_mm512_permutexvar_ps(order, s)));
#elif HWY_TARGET == HWY_AVX2
  for (int i = 0; i < 4; i += 2) {
    const __m256 h0 = _mm256_add_ps(a[i].part[0].raw, a[i].part[1].raw);
    const __m256 h1 = _mm256_add_ps(a[i + 1].part[0].raw, a[i + 1].part[1].raw);
    const __m256 q = _mm256_add_ps(_mm256_permute2f128_ps(h0, h1, 0x20), _mm256_permute2f128_ps(h0, h1, 0x31));
    const __m256 d = _mm256_add_ps(q, _mm256_permute_ps(q, 0x4E));
    const __m256 s = _mm256_add_ps(d, _mm256_permute_ps(d, 0xB1));
    sums[i] = _mm_cvtss_f32(_mm256_castps256_ps128(s));
    sums[i + 1] = _mm_cvtss_f32(_mm256_extractf128_ps(s, 1));
  }
#else
  for (int i = 0; i < 4; ++i) sums[i] = ReduceSum(a[i]);
#endif
}

// The largest lane; no NaN may be among them.
HWY_INLINE float ReduceMax(F32x16 a) {
  auto m = a.part[0];
  for (size_t i = 1; i < kParts; ++i) m = hn::Max(m, a.part[i]);
  return hn::GetLane(hn::MaxOfLanes(NativeF32(), m));
}

}  // namespace HWY_NAMESPACE
}  // namespace senko::numerics
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
