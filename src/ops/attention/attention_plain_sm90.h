// Attention of small models' dims: a block of threads a head, no tensor cores. Weights are taken against the final
// maximum, as on the CPU; a row's bits depend on its own keys only.
#pragma once

#include "ops/attention/attention_sm90.h"

namespace senko::ops {

void AttentionPlainSm90(const AttentionSm90Params& p, cudaStream_t stream);

}  // namespace senko::ops
