// What LinearCpu, ExpertsCpu, OutputProjCpu and LogitsCpu share: some outputs of some rows, on the calling thread.
#pragma once

#include <cstdint>

#include "ops/linear/linear.h"

namespace senko::ops {

// FP4 weights are multiplied with x in lane order (README.md, "FP4"): a row of PackedCols floats made by PackRow, step
// s and lane l at 16 s + l. Step 2 i of a dword's eight columns is column i, step 2 i + 1 column 4 + i. Every other
// format takes x as it is.
constexpr bool NeedsPacking(WeightFormat format) { return format == WeightFormat::kFp4; }
constexpr int64_t kFp4BlockCols = 512;
constexpr int64_t PackedCols(int64_t in) { return (in + kFp4BlockCols - 1) / kFp4BlockCols * kFp4BlockCols; }
void PackRow(const float* x, int64_t in, float* packed);
constexpr int64_t Fp4Step(int64_t t) { return t / 8 * 8 + t % 4 * 2 + t / 4 % 2; }  // of column t of a group of 32
// Where PackRow puts column k.
constexpr int64_t PackedIndex(int64_t k) {
  const int64_t group = k / 32 % 16;
  return k / kFp4BlockCols * kFp4BlockCols + Fp4Step(k % 32) * 16 + (group % 4 * 4 + group / 4);
}

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

// The kernels behind RunSpan, which give the same bits: weights expanded into a panel (many rows) or streamed (up to
// kSkinnyRows rows), and then either expanded to float or multiplied as bf16.
void SpanByPanel(const LinearSpan& span);
void SpanByStream(const LinearSpan& span);  // the better of the two below
void SpanByFloat(const LinearSpan& span);
// Calls rest() for the rows and outputs that it does not cover. Only where HasDot().
void SpanByDot(const LinearSpan& span, void (*rest)(const LinearSpan&));
bool HasDot();

// Up to this many rows the weights are streamed; beyond it a panel is expanded.
inline constexpr int64_t kSkinnyRows = 8;

// Outputs per task that keep all threads busy and a thread's panel worth its making.
int64_t SpanOutputs(int64_t rows);

}  // namespace senko::ops
