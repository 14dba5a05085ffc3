// One row of RMSNorm, for the operators that fuse it.
#pragma once

#include <cstdint>

namespace senko::ops {

// y[cols] = weight * (x * rsqrt(mean(x^2) + eps)), rounded to bf16 on request; y may be x. The reference
// works in float64 and rounds once; the fast one follows norm.h's canonical float32 order.
void RmsNormRowReference(const float* x, const float* weight, int64_t cols, float eps, bool round_bf16, float* y);
void RmsNormRowCpu(const float* x, const float* weight, int64_t cols, float eps, bool round_bf16, float* y);

}  // namespace senko::ops
