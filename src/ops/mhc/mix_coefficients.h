// The small part of MhcMix: 24 numbers to pre, post and the doubly stochastic comb.
#pragma once

#include <cstdint>

#include "ops/mhc/mhc.h"

namespace senko::ops {

// Row `row` of p from its projections p.mixes and its sum of squares over all streams. float32.
void MixCoefficients(const MhcMixParams& p, int64_t row, float sum_of_squares);

}  // namespace senko::ops
