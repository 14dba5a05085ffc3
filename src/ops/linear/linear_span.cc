// Runs a span on the best target, with the calling thread's panel.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/linear/linear_span.cc"
#include "hwy/foreach_target.h"
#include "ops/linear/linear_panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace senko::ops {
namespace HWY_NAMESPACE {

void RunSpanHere(const LinearSpan& span, float* panel) { SpanByPanel(span, panel); }

}  // namespace HWY_NAMESPACE
}  // namespace senko::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "base/check.h"
#include "tensor/buffer.h"

namespace senko::ops {
HWY_EXPORT(RunSpanHere);

namespace {

// Panel and scales of the largest target.
constexpr size_t kScratchFloats = 96 * (kChunk + kChunk / kFp4BlockCols * 16);

}  // namespace

void PackRow(const float* x, int64_t in, float* packed) {
  for (int64_t k = 0; k < in; ++k) packed[PackedIndex(k)] = x[k];
  for (int64_t k = in; k < PackedCols(in); ++k) packed[PackedIndex(k)] = 0.0f;
}

void RunSpan(const LinearSpan& span) {
  if (span.rows <= 0 || span.begin >= span.end) return;
  thread_local Buffer<float> panel(kScratchFloats);
  HWY_DYNAMIC_DISPATCH(RunSpanHere)(span, panel.data());
}

int64_t SpanOutputs(int64_t rows) { return rows <= 8 ? 32 : 96; }

}  // namespace senko::ops
#endif  // HWY_ONCE
