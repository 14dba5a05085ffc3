// The skinny kernel on AVX512-BF16 and VBMI: weights become bf16 by table lookups and are multiplied two columns at a
// time. Gives the bits of linear_skinny.cc and linear_panel.cc.
//
// Why the bits are the same. vdpbf16ps adds, per 32-bit lane, the product of the upper halves and then that of the
// lower halves, each like a fused multiply-add: the canonical order (README.md). Both operands are exact: FP8 and FP4
// values are bf16 values, and a row whose x is not is left out. It differs in one thing: subnormal operands, sums and
// results become zero. They cannot occur: if every x that is not zero is a multiple of 2^-a and every weight of 2^-b,
// every product and, rounded or not, every partial sum is one of 2^-(a + b), hence zero or normal where a + b <= 126.
// The guards below see to that. Infinities and NaN, also from overflow, survive to the output: an output that is not
// finite is left out too. What is left out goes to `rest`, row by row, so that a row's fate is its own.
#include "ops/linear/linear_span.h"

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// gcc 12's AVX-512 headers build "undefined" vectors from themselves and warn about it.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>

#include "base/check.h"
#include "hwy/base.h"
#include "numerics/bf16.h"
#include "numerics/e4m3.h"
#include "tensor/buffer.h"

namespace senko::ops {
namespace {

// bf16 of an e4m3 magnitude code, its low and its high bytes apart.
struct Fp8Table {
  alignas(64) uint8_t low[128];
  uint8_t high[128];
  // Byte 16 q + 8 h + 2 i + p takes column 32 h + 16 p + 4 q + i: unpacking low and high bytes then gives pairs.
  uint8_t order[64];
  Fp8Table() {
    for (int i = 0; i < 128; ++i) {
      const uint16_t code = numerics::FloatToBf16(numerics::E4m3ToFloat(static_cast<uint8_t>(i)));
      low[i] = static_cast<uint8_t>(code & 0xFF);
      high[i] = static_cast<uint8_t>(code >> 8);
    }
    for (int b = 0; b < 64; ++b) {
      const int q = b / 16, h = b / 8 % 2, i = b / 2 % 4, p = b % 2;
      order[b] = static_cast<uint8_t>(32 * h + 16 * p + 4 * q + i);
    }
  }
};
const Fp8Table kFp8Table;

}  // namespace
}  // namespace senko::ops

HWY_PUSH_ATTRIBUTES("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16")
#include "ops/linear/linear_dot_lanes.h"
#include "ops/linear/linear_dot_weights.h"

namespace senko::ops {
namespace {

bool IsFinite(float x) { return (std::bit_cast<uint32_t>(x) & 0x7F800000u) != 0x7F800000u; }

// One output range and row of the span, by the other kernel.
void Leave(const LinearSpan& span, int64_t row, int64_t begin, int64_t end, void (*rest)(const LinearSpan&)) {
  LinearSpan part = span;
  part.rows = 1;
  part.x += row;
  part.y += row;
  part.begin = begin;
  part.end = end;
  rest(part);
}

// Outputs [n, n + kOuts) for kRows rows.
template <WeightFormat kFormat, int kOuts, int kRows>
HWY_NOINLINE void Tile(const LinearSpan& span, int64_t n, const DotRow* rows, void (*rest)(const LinearSpan&)) {
  Sums<kOuts, kRows> sums;
  bool covered = true;
  int least_weight = 255;  // its exponent
  if constexpr (kFormat == WeightFormat::kFp4) {
    covered = Fp4Dot<kOuts, kRows>(span.weight, n, rows, sums);
  } else if constexpr (kFormat == WeightFormat::kFp8) {
    Fp8Dot<kOuts, kRows>(span.weight, n, rows, sums);
  } else {
    least_weight = Bf16Dot<kOuts, kRows>(span.weight, n, rows, sums);
  }
  for (int r = 0; r < kRows; ++r) {
    bool ok = covered;
    if (kFormat == WeightFormat::kBf16) ok = least_weight > 0 && rows[r].least + least_weight >= kLeastBf16Product;
    for (int o = 0; o < kOuts; ++o) ok = ok && IsFinite(sums.total[o * kRows + r]);
    if (!ok) {
      Leave(span, rows[r].row, n, n + kOuts, rest);
      continue;
    }
    float* y = span.y[rows[r].row] + (n - span.y_first);
    for (int o = 0; o < kOuts; ++o) {
      const float total = sums.total[o * kRows + r];
      y[o] = span.round_bf16 ? numerics::RoundToBf16(total) : total;
    }
  }
}

// `outs` outputs, kStep at a time, for kRows rows.
template <WeightFormat kFormat, int kStep, int kRows>
void Outputs(const LinearSpan& span, int64_t n, int64_t outs, const DotRow* rows, void (*rest)(const LinearSpan&)) {
  int64_t o = 0;
  for (; o + kStep <= outs; o += kStep) Tile<kFormat, kStep, kRows>(span, n + o, rows, rest);
  for (; o < outs; ++o) Tile<kFormat, 1, kRows>(span, n + o, rows, rest);
}

// Outputs [begin, end): four at a time for all rows, as many rows at once as the registers hold, while the weights are
// in L1.
template <WeightFormat kFormat>
void RunTile(const LinearSpan& span, int64_t begin, int64_t end, const DotRow* rows, int64_t count,
             void (*rest)(const LinearSpan&)) {
  constexpr int kStep4 = kFormat == WeightFormat::kFp4 ? 2 : 4;
  for (int64_t n = begin; n < end; n += 4) {
    const int64_t outs = std::min<int64_t>(4, end - n);
    int64_t row = 0;
    for (; row + 8 <= count; row += 8) Outputs<kFormat, 2, 8>(span, n, outs, rows + row, rest);
    for (; row + 4 <= count; row += 4) Outputs<kFormat, kStep4, 4>(span, n, outs, rows + row, rest);
    for (; row + 2 <= count; row += 2) Outputs<kFormat, 4, 2>(span, n, outs, rows + row, rest);
    for (; row < count; ++row) Outputs<kFormat, 4, 1>(span, n, outs, rows + row, rest);
  }
}

// A stored weight times a larger scale may be infinite.
constexpr uint8_t kMostFp8Scale = 245;

// FP8: the rows of one scale tile whose scaled x is exact and in range; the others are left to `rest`.
int64_t ScaleRows(const LinearSpan& span, int64_t begin, int64_t end, const DotRow* rows, int64_t count, DotRow* scaled,
                  void (*rest)(const LinearSpan&)) {
  const int64_t in = span.weight.in;
  const uint8_t* const scales = span.weight.scale + begin / 32 * (in / 32);
  const auto [low, high] = std::minmax_element(scales, scales + in / 32);
  int64_t kept = 0;
  for (int64_t i = 0; i < count; ++i) {
    const bool in_range =
        *high <= kMostFp8Scale && rows[i].least + *low - 127 >= kLeastFp8X && rows[i].most + *high - 127 < 255;
    if (!in_range) {
      Leave(span, rows[i].row, begin, end, rest);
      continue;
    }
    ScalePairs(rows[i].pairs, scales, in, scaled[kept].pairs);
    scaled[kept++].row = rows[i].row;
  }
  return kept;
}

void Run(const LinearSpan& span, const DotRow* rows, int64_t count, DotRow* scaled, void (*rest)(const LinearSpan&)) {
  if (span.weight.format == WeightFormat::kFp4) {
    return RunTile<WeightFormat::kFp4>(span, span.begin, span.end, rows, count, rest);
  }
  if (span.weight.format == WeightFormat::kBf16) {
    return RunTile<WeightFormat::kBf16>(span, span.begin, span.end, rows, count, rest);
  }
  for (int64_t n = span.begin; n < span.end;) {
    const int64_t end = std::min(span.end, (n / 32 + 1) * 32);
    const int64_t kept = ScaleRows(span, n, end, rows, count, scaled, rest);
    RunTile<WeightFormat::kFp8>(span, n, end, scaled, kept, rest);
    n = end;
  }
}

// Whether vdpbf16ps adds the upper product first and rounds twice: a processor that did not would break the order.
HWY_NOINLINE bool DotIsCanonical() {
  const auto dot = [](float sum, uint16_t first, uint16_t second, uint16_t w) {
    const __m512i x = _mm512_set1_epi32(second << 16 | first);
    return _mm512_cvtss_f32(Dot(_mm512_set1_ps(sum), x, _mm512_set1_epi16(static_cast<int16_t>(w))));
  };
  constexpr uint16_t kOne = 0x3F80, kTwo24 = 0x4B80, kMinusTwo24 = 0xCB80;
  return dot(1.0f, kMinusTwo24, kTwo24, kOne) == 0.0f && dot(1.0f, kTwo24, kMinusTwo24, kOne) == 1.0f &&
         dot(0x1p24f, kOne, kOne, kOne) == 0x1p24f;
}

}  // namespace

void SpanByDot(const LinearSpan& span, void (*rest)(const LinearSpan&)) {
  const WeightView& w = span.weight;
  SENKO_CHECK(span.rows <= kSkinnyRows);
  if (w.format == WeightFormat::kF32 || w.in % 32 != 0) return rest(span);
  // Grows to the widest x seen and stays.
  thread_local Buffer<uint16_t> scratch;
  const int64_t cols = w.format == WeightFormat::kFp4 ? PackedCols(w.in) : w.in;
  if (scratch.size() < static_cast<size_t>(2 * kSkinnyRows * cols)) {
    scratch = Buffer<uint16_t>(static_cast<size_t>(2 * kSkinnyRows * cols));
  }
  DotRow rows[kSkinnyRows], scaled[kSkinnyRows];
  int64_t count = 0;
  for (int64_t r = 0; r < span.rows; ++r) {
    DotRow& row = rows[count];
    row.row = r;
    row.pairs = scratch.data() + r * cols;
    scaled[r].pairs = scratch.data() + (kSkinnyRows + r) * cols;
    const bool exact = PackPairs(span.x[r], cols, row);
    if (exact && (w.format != WeightFormat::kFp4 || row.least >= kLeastFp4X)) {
      ++count;
    } else {
      Leave(span, r, span.begin, span.end, rest);
    }
  }
  Run(span, rows, count, scaled, rest);
}

}  // namespace senko::ops
HWY_POP_ATTRIBUTES

namespace senko::ops {

bool HasDot() {
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi") && DotIsCanonical();
}

}  // namespace senko::ops
#else
#include "base/check.h"

namespace senko::ops {

bool HasDot() { return false; }
void SpanByDot(const LinearSpan&, void (*)(const LinearSpan&)) { SENKO_CHECK(false); }

}  // namespace senko::ops
#endif
