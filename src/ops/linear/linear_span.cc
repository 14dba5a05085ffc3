#include "ops/linear/linear_span.h"

namespace senko::ops {

void PackRow(const float* x, int64_t in, float* packed) {
  for (int64_t k = 0; k < in; k += kFp4BlockCols, packed += kFp4BlockCols) {
    const int64_t groups = in - k < kFp4BlockCols ? (in - k) / 32 : 16;
    for (int lane = 0; lane < 16; ++lane) {
      const int group = lane % 4 * 4 + lane / 4;
      for (int t = 0; t < 32; ++t) packed[16 * Fp4Step(t) + lane] = group < groups ? x[k + 32 * group + t] : 0.0f;
    }
  }
}

void RunSpan(const LinearSpan& span) {
  if (span.rows <= 0 || span.begin >= span.end) return;
  if (span.rows <= kSkinnyRows) {
    SpanByStream(span);
  } else {
    SpanByPanel(span);
  }
}

int64_t SpanOutputs(int64_t rows) { return rows <= kSkinnyRows ? 32 : 96; }

}  // namespace senko::ops
