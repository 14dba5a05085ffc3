// Clamped SwiGLU with the routing weight (model.md 3.8), one row of one expert.
#pragma once

#include <cstdint>

namespace senko::ops {

// y[i] = weight * (silu(min(g[i], limit)) * clamp(u[i], -limit, limit)), float32, rounded to bf16 if asked; no clamp
// for limit <= 0. y may be g. A NaN in g or u gives NaN. Each value depends on its own g and u only.
void SwigluRow(const float* g, const float* u, int64_t n, float limit, float weight, bool round_bf16, float* y);

}  // namespace senko::ops
