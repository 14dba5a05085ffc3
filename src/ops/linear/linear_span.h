// What LinearCpu, ExpertsCpu, OutputProjCpu and LogitsCpu share: some outputs of some rows, on the calling thread.
#pragma once

#include <cstdint>

#include "ops/linear/linear.h"

namespace senko::ops {

// FP4 weights are multiplied with x in lane order (README.md, "FP4"), PackedCols floats padded with zeros, and as
// digits (linear_fp4_digits.h), which follow them: PackedFloats in all. Every other format takes x as it is.
constexpr bool NeedsPacking(WeightFormat format) { return format == WeightFormat::kFp4; }
constexpr int64_t kFp4BlockCols = 512;
constexpr int64_t PackedCols(int64_t in) { return (in + kFp4BlockCols - 1) / kFp4BlockCols * kFp4BlockCols; }
int64_t PackedFloats(int64_t in);
// Digits are worth their making where few rows stream a weight. Without them every kernel works, in floats.
enum class PackFor { kFewRows, kManyRows };
void PackRow(const float* x, int64_t in, PackFor rows, float* packed);
// PackRow piece by piece, in any order and by any threads: columns [k, k + 32), k a multiple of 32, and what follows
// the last column.
void PackGroup(const float* x, int64_t k, int64_t in, PackFor rows, float* packed);
void PackEnd(int64_t in, PackFor rows, float* packed);

// Outputs [begin, end) of `weight` for `rows` rows from x[r] (packed where needed): output n goes to y[r][n - y_first].
struct LinearSpan {
  int64_t rows = 0;
  const float* const* x = nullptr;
  WeightView weight;
  int64_t begin = 0;
  int64_t end = 0;
  float* const* y = nullptr;
  int64_t y_first = 0;
  bool round_bf16 = false;
};
void RunSpan(const LinearSpan& span);

// The kernels behind RunSpan, which give the same bits: weights expanded into a panel (many rows); streamed and
// expanded to float (up to kSkinnyRows rows); streamed and multiplied as integers (FP4, only where HasDigitKernel).
void SpanByPanel(const LinearSpan& span);
void SpanByStream(const LinearSpan& span);
void SpanByDigits(const LinearSpan& span);
bool HasDigitKernel();     // on the SIMD target in use
bool CpuHasDigitKernel();  // on this machine

// Up to this many rows the weights are streamed; beyond it a panel is expanded.
inline constexpr int64_t kSkinnyRows = 8;

// Outputs per task that keep all threads busy and a thread's panel worth its making.
int64_t SpanOutputs(int64_t rows);

}  // namespace senko::ops
