// Window rows, entries and index keys: each row is normalised, rotated and quantised while it is in the
// cache.
#include <algorithm>
#include <vector>

#include "numerics/row_quantise.h"
#include "ops/kv_write/kv_write.h"
#include "ops/norm/norm.h"
#include "ops/norm/rms_row.h"

namespace senko::ops {
namespace {

// Rows a thread takes at once: below this, waking a thread costs more than it saves.
constexpr int64_t kGrain = 8;

// A row of floats owned by the calling thread; it grows to the largest row once.
float* ScratchRow(int64_t dim) {
  thread_local std::vector<float> row;
  if (row.size() < static_cast<size_t>(dim)) row.resize(static_cast<size_t>(dim));
  return row.data();
}

void RotateTail(float* x, int64_t dim, int64_t rope_dim, const float* table_row, bool round_bf16) {
  RopeRotate(x + dim - rope_dim, table_row, rope_dim / 2, /*inverse=*/false, round_bf16);
}

}  // namespace

void WindowWriteCpu(const WindowWriteParams& p, ThreadPool& pool) {
  pool.ParallelFor(p.rows, kGrain, [&](int64_t begin, int64_t end, int) {
    float* row = ScratchRow(p.dim);
    for (int64_t r = begin; r < end; ++r) {
      RmsNormRowCpu(p.kv + r * p.dim, p.norm_weight, p.dim, p.rms_eps, p.round_bf16, row);
      RotateTail(row, p.dim, p.rope_dim, p.rope + r * p.rope_dim, p.round_bf16);
      uint8_t* codes = p.staging + r * p.row_stride;
      numerics::QuantiseFp8Row(row, p.dim, codes, codes + p.dim);
    }
  });
}

void EntryWriteCpu(const EntryWriteParams& p, ThreadPool& pool) {
  pool.ParallelFor(p.count, kGrain, [&](int64_t begin, int64_t end, int) {
    float* row = ScratchRow(p.dim);
    for (int64_t i = begin; i < end; ++i) {
      std::copy_n(p.latent + i * p.dim, p.dim, row);
      RotateTail(row, p.dim, p.rope_dim, p.rope + i * p.rope_dim, p.round_bf16);
      uint8_t* values = p.entries.Entry(p.sequences[p.latents[i].sequence], p.latents[i].entry);
      numerics::QuantiseFp4Block16Row(row, p.dim, values, values + p.dim / 2);
    }
  });
}

void KeyWriteCpu(const KeyWriteParams& p, ThreadPool& pool) {
  pool.ParallelFor(p.count, kGrain, [&](int64_t begin, int64_t end, int) {
    float* row = ScratchRow(p.dim);
    for (int64_t i = begin; i < end; ++i) {
      RmsNormRowCpu(p.k + i * p.dim, p.norm_weight, p.dim, p.rms_eps, p.round_bf16, row);
      RotateTail(row, p.dim, p.rope_dim, p.rope + i * p.rope_dim, p.round_bf16);
      const SequenceKv& sequence = p.sequences[p.latents[i].sequence];
      numerics::QuantiseFp4Row(row, p.dim, p.entries.KeyValues(sequence, p.latents[i].entry),
                               p.entries.KeyScales(sequence, p.latents[i].entry));
    }
  });
}

}  // namespace senko::ops
