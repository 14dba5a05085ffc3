#include "ops/linear/linear_span.h"

#include "ops/linear/linear_fp4_digits.h"

namespace senko::ops {

namespace {

// Other machines have no use for digits.
bool HaveDigits() {
  static const bool have = CpuHasDigitKernel();
  return have;
}

}  // namespace

int64_t PackedFloats(int64_t in) {
  return PackedCols(in) / kFp4BlockCols * (kFp4BlockCols + (HaveDigits() ? kDigitFloats : 0));
}

void PackGroup(const float* x, int64_t k, int64_t in, PackFor rows, float* packed) {
  const int64_t block = k / kFp4BlockCols, group = k % kFp4BlockCols / 32;
  const int lane = static_cast<int>(group % 4 * 4 + group / 4);
  for (int t = 0; t < 32; ++t) packed[block * kFp4BlockCols + 16 * t + lane] = x[t];
  if (!HaveDigits()) return;
  Fp4Digits& digits = reinterpret_cast<Fp4Digits*>(packed + PackedCols(in))[block];
  if (rows == PackFor::kFewRows) {
    PackDigits(x, lane, digits);
  } else {
    digits.digits[lane] = 0;
  }
}

void PackEnd(int64_t in, PackFor rows, float* packed) {
  const float zeros[32] = {};
  for (int64_t k = in; k < PackedCols(in); k += 32) PackGroup(zeros, k, in, rows, packed);
}

void PackRow(const float* x, int64_t in, PackFor rows, float* packed) {
  for (int64_t k = 0; k < in; k += 32) PackGroup(x + k, k, in, rows, packed);
  PackEnd(in, rows, packed);
}

void RunSpan(const LinearSpan& span) {
  if (span.rows <= 0 || span.begin >= span.end) return;
  if (span.rows > kSkinnyRows) {
    SpanByPanel(span);
  } else if (span.weight.format == WeightFormat::kFp4 && HasDigitKernel()) {
    SpanByDigits(span);
  } else {
    SpanByStream(span);
  }
}

int64_t SpanOutputs(int64_t rows) { return rows <= kSkinnyRows ? 32 : 96; }

}  // namespace senko::ops
