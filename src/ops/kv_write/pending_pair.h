// Where the two tokens of a ratio-2 group lie.
#pragma once

#include <cstdint>

#include "ops/kv_write/kv_write.h"

namespace senko::ops {

// Rows of c and z, [dim] each: token 0 is the group's first.
struct PairRows {
  const float* c0;
  const float* z0;
  const float* c1;
  const float* z1;
};

// The first token comes from this step's rows, or from the slot where an earlier step left it.
inline PairRows FindPair(const CompressParams& p, const LatentRef& latent) {
  const float* c1 = p.c + latent.row * p.dim;
  const float* z1 = p.z + latent.row * p.dim;
  if (latent.row_prev >= 0) return {p.c + latent.row_prev * p.dim, p.z + latent.row_prev * p.dim, c1, z1};
  const auto* pending = reinterpret_cast<const float*>(p.sequences[latent.sequence].slot + p.pending_offset) +
                        latent.entry % p.pending_rows * 2 * p.dim;
  return {pending, pending + p.dim, c1, z1};
}

}  // namespace senko::ops
