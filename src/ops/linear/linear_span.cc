#include "ops/linear/linear_span.h"

namespace senko::ops {

void PackRow(const float* x, int64_t in, float* packed) {
  for (int64_t k = 0; k < in; ++k) packed[PackedIndex(k)] = x[k];
  for (int64_t k = in; k < PackedCols(in); ++k) packed[PackedIndex(k)] = 0.0f;
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
