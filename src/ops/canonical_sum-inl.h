// Canonical sums over a row (architecture.md section 4): chunks of 1024 from zero, added in order; inside a
// chunk column c goes to lane c mod 16 of accumulator c / 16 mod 4, and the four are added pairwise before
// ReduceSum.
//
// Included once per target (no ordinary include guard).
#if defined(SENKO_OPS_CANONICAL_SUM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SENKO_OPS_CANONICAL_SUM_INL_H_
#undef SENKO_OPS_CANONICAL_SUM_INL_H_
#else
#define SENKO_OPS_CANONICAL_SUM_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "numerics/simd/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace senko::ops {
namespace HWY_NAMESPACE {

inline constexpr int64_t kSumChunk = 1024;

struct ChunkSum {
  numerics::HWY_NAMESPACE::F32x16 part[4];
};

HWY_INLINE ChunkSum ZeroChunkSum() {
  namespace v = numerics::HWY_NAMESPACE;
  return {{v::Zero16(), v::Zero16(), v::Zero16(), v::Zero16()}};
}

HWY_INLINE float Total(const ChunkSum& s) {
  namespace v = numerics::HWY_NAMESPACE;
  return v::ReduceSum(v::Add(v::Add(s.part[0], s.part[1]), v::Add(s.part[2], s.part[3])));
}

// The n <= 16 floats at p, zeros after them.
HWY_INLINE numerics::HWY_NAMESPACE::F32x16 LoadUpTo16(const float* p, int64_t n) {
  namespace v = numerics::HWY_NAMESPACE;
  return n >= 16 ? v::LoadU16(p) : v::LoadN16(p, static_cast<size_t>(n));
}

HWY_INLINE float SumOfSquares(const float* x, int64_t n) {
  namespace v = numerics::HWY_NAMESPACE;
  float total = 0;
  for (int64_t chunk = 0; chunk < n; chunk += kSumChunk) {
    const int64_t end = std::min(chunk + kSumChunk, n);
    ChunkSum sum = ZeroChunkSum();
    int64_t c = chunk;
    for (; c + 64 <= end; c += 64) {
      for (int i = 0; i < 4; ++i) {
        const v::F32x16 value = v::LoadU16(x + c + 16 * i);
        sum.part[i] = v::MulAdd(value, value, sum.part[i]);
      }
    }
    for (int i = 0; c < end; ++i, c += 16) {
      const v::F32x16 value = LoadUpTo16(x + c, end - c);
      sum.part[i] = v::MulAdd(value, value, sum.part[i]);
    }
    total += Total(sum);
  }
  return total;
}

}  // namespace HWY_NAMESPACE
}  // namespace senko::ops
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
