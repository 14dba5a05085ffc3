// The truth: scalar loops over the scalar quantisers, sums and exponentials in float64.
#include <algorithm>
#include <cmath>
#include <vector>

#include "numerics/bf16.h"
#include "numerics/quantise.h"
#include "ops/kv_write/kv_write.h"
#include "ops/kv_write/pending_pair.h"
#include "ops/norm/rms_row.h"
#include "ops/norm/rope_reference.h"

namespace senko::ops {
namespace {

// Rotates the last rope_dim of x[dim] by the table's row `index`.
void RotateTail(float* x, int64_t dim, int64_t rope_dim, const float* rope, int64_t index, bool round_bf16) {
  RopeRotateReference(x + dim - rope_dim, rope + index * rope_dim, rope_dim / 2, /*inverse=*/false, round_bf16);
}

}  // namespace

void WindowWriteReference(const WindowWriteParams& p, ThreadPool&) {
  std::vector<float> row(static_cast<size_t>(p.dim));
  for (int64_t r = 0; r < p.rows; ++r) {
    RmsNormRowReference(p.kv + r * p.dim, p.norm_weight, p.dim, p.rms_eps, p.round_bf16, row.data());
    RotateTail(row.data(), p.dim, p.rope_dim, p.rope, r, p.round_bf16);
    uint8_t* codes = p.staging + r * p.row_stride;
    uint8_t* scales = codes + p.dim;
    for (int64_t b = 0; b < p.dim / numerics::kFp8Block; ++b) {
      const int64_t at = b * numerics::kFp8Block;
      numerics::QuantiseFp8(row.data() + at, codes + at, scales + b);
    }
  }
}

void CompressReference(const CompressParams& p, ThreadPool&) {
  std::vector<float> pooled(static_cast<size_t>(p.dim));
  for (int64_t i = 0; i < p.count; ++i) {
    const float* latent = p.c + p.latents[i].row * p.dim;
    if (p.ratio == 2) {
      const PairRows pair = FindPair(p, p.latents[i]);
      for (int64_t d = 0; d < p.dim; ++d) {
        const double z0 = pair.z0[d], z1 = pair.z1[d];
        const double top = std::max(z0, z1);
        const double e0 = std::exp(z0 - top), e1 = std::exp(z1 - top);
        const double sum = e0 / (e0 + e1) * double{pair.c0[d]} + e1 / (e0 + e1) * double{pair.c1[d]};
        const float value = static_cast<float>(sum);
        pooled[static_cast<size_t>(d)] = p.round_bf16 ? numerics::RoundToBf16(value) : value;
      }
      latent = pooled.data();
    }
    RmsNormRowReference(latent, p.norm_weight, p.dim, p.rms_eps, p.round_bf16, p.out + i * p.dim);
  }
}

void EntryWriteReference(const EntryWriteParams& p, ThreadPool&) {
  std::vector<float> row(static_cast<size_t>(p.dim));
  for (int64_t i = 0; i < p.count; ++i) {
    std::copy_n(p.latent + i * p.dim, p.dim, row.data());
    RotateTail(row.data(), p.dim, p.rope_dim, p.rope, i, p.round_bf16);
    uint8_t* values = p.entries.Entry(p.sequences[p.latents[i].sequence], p.latents[i].entry);
    uint8_t* scales = values + p.dim / 2;
    for (int64_t b = 0; b < p.dim / numerics::kFp4Block16; ++b) {
      const int64_t at = b * numerics::kFp4Block16;
      numerics::QuantiseFp4Block16(row.data() + at, values + at / 2, scales + b);
    }
  }
}

void KeyWriteReference(const KeyWriteParams& p, ThreadPool&) {
  std::vector<float> row(static_cast<size_t>(p.dim));
  for (int64_t i = 0; i < p.count; ++i) {
    RmsNormRowReference(p.k + i * p.dim, p.norm_weight, p.dim, p.rms_eps, p.round_bf16, row.data());
    RotateTail(row.data(), p.dim, p.rope_dim, p.rope, i, p.round_bf16);
    const SequenceKv& sequence = p.sequences[p.latents[i].sequence];
    uint8_t* values = p.entries.KeyValues(sequence, p.latents[i].entry);
    uint8_t* scales = p.entries.KeyScales(sequence, p.latents[i].entry);
    for (int64_t b = 0; b < p.dim / numerics::kFp4Block; ++b) {
      const int64_t at = b * numerics::kFp4Block;
      numerics::QuantiseFp4(row.data() + at, values + at / 2, scales + b);
    }
  }
}

}  // namespace senko::ops
