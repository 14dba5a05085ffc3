// For references only: one element of a stored weight.
#pragma once

#include <cstdint>

#include "ops/linear/linear.h"

namespace senko::ops {

// Element (n, k), scaled, as a float.
float WeightAt(const WeightView& w, int64_t n, int64_t k);

}  // namespace senko::ops
