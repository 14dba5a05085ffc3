// Gathering reads rows where they lie in the file mapping; injecting passes over each stream twice.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/engram/engram_cpu.cc"
#include <hwy/foreach_target.h>
// after foreach_target.h, as Highway wants it
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "numerics/quantise.h"
#include "numerics/row_quantise.h"
#include "ops/canonical_sum-inl.h"
#include "ops/engram/engram.h"

HWY_BEFORE_NAMESPACE();
namespace senko::ops::HWY_NAMESPACE {
namespace {

namespace v = numerics::HWY_NAMESPACE;

struct StreamSums {
  float product, x_squares, key_squares;
};

// sum x * (q * k) * key, sum x^2 and sum key^2 in the canonical order: float32 products left to right, the
// last one fused with the sum.
HWY_INLINE StreamSums SumStream(const float* x, const float* key, const float* q, const float* k, int64_t n) {
  StreamSums total = {0, 0, 0};
  for (int64_t chunk = 0; chunk < n; chunk += kSumChunk) {
    const int64_t end = std::min(chunk + kSumChunk, n);
    ChunkSum product = ZeroChunkSum(), x2 = ZeroChunkSum(), key2 = ZeroChunkSum();
    int64_t c = chunk;
    for (; c + 64 <= end; c += 64) {
      for (int i = 0; i < 4; ++i) {
        const int64_t at = c + 16 * i;
        const v::F32x16 xs = v::LoadU16(x + at), keys = v::LoadU16(key + at);
        const v::F32x16 weight = v::Mul(v::LoadU16(q + at), v::LoadU16(k + at));
        product.part[i] = v::MulAdd(v::Mul(xs, weight), keys, product.part[i]);
        x2.part[i] = v::MulAdd(xs, xs, x2.part[i]);
        key2.part[i] = v::MulAdd(keys, keys, key2.part[i]);
      }
    }
    for (int i = 0; c < end; ++i, c += 16) {
      const int64_t left = end - c;
      const v::F32x16 xs = LoadUpTo16(x + c, left), keys = LoadUpTo16(key + c, left);
      const v::F32x16 weight = v::Mul(LoadUpTo16(q + c, left), LoadUpTo16(k + c, left));
      product.part[i] = v::MulAdd(v::Mul(xs, weight), keys, product.part[i]);
      x2.part[i] = v::MulAdd(xs, xs, x2.part[i]);
      key2.part[i] = v::MulAdd(keys, keys, key2.part[i]);
    }
    total.product += Total(product);
    total.x_squares += Total(x2);
    total.key_squares += Total(key2);
  }
  return total;
}

HWY_INLINE void AddScaled(float gate, const float* value, bool round_bf16, float* x, int64_t n) {
  const v::F32x16 gates = v::Set16(gate);
  for (int64_t c = 0; c < n; c += 16) {
    const int64_t left = n - c;
    v::F32x16 sum = v::MulAdd(gates, LoadUpTo16(value + c, left), LoadUpTo16(x + c, left));
    if (round_bf16) sum = v::RoundToBf16(sum);
    if (left >= 16) {
      v::StoreU16(sum, x + c);
    } else {
      v::StoreN16(sum, x + c, static_cast<size_t>(left));
    }
  }
}

void InjectRow(const EngramInjectParams& p, int64_t row) {
  const int64_t d = p.hidden;
  const float* kv = p.kv + row * (p.streams + 1) * d;
  const float width = static_cast<float>(d);
  const float root = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)));
  for (int64_t s = 0; s < p.streams; ++s) {
    float* x = p.x + (row * p.streams + s) * d;
    const StreamSums sums = SumStream(x, kv + s * d, p.q_weight + s * d, p.k_weight + s * d, d);
    const float x_rms = 1.0f / std::sqrt(sums.x_squares / width + p.rms_eps);
    const float key_rms = 1.0f / std::sqrt(sums.key_squares / width + p.rms_eps);
    // Each rms takes its factor alone: their product overflows float32 when both rows are all but zero.
    const float dot = sums.product * x_rms * key_rms * root;
    const float magnitude = std::abs(dot) > 1e-6f || std::isnan(dot) ? std::abs(dot) : 1e-6f;
    const float gate = 1.0f / (1.0f + std::exp(-std::copysign(std::sqrt(magnitude), dot)));
    AddScaled(gate, kv + p.streams * d, p.round_bf16, x, d);
  }
}

}  // namespace
}  // namespace senko::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace senko::ops {

HWY_EXPORT(InjectRow);

void EngramGatherCpu(const EngramGatherParams& p, ThreadPool& pool) {
  const int64_t dim = p.table.dim, blocks = dim / numerics::kFp8Block;
  SENKO_CHECK(dim % numerics::kFp8Block == 0);
  const int64_t count = p.rows * p.slots;
  // Rows lie far apart, so each costs a few cache misses, or a page fault when the table is colder than
  // memory: ask for the next ones before they are needed, and let threads wait for different ones.
  constexpr int64_t kAhead = 8;
  pool.ParallelFor(count, std::max<int64_t>(1, std::min<int64_t>(p.slots, 16)), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) SENKO_CHECK(p.indices[i] >= 0 && p.indices[i] < p.table.rows);
    for (int64_t i = begin; i < end; ++i) {
      if (i + kAhead < end) {
        const uint8_t* next = p.table.values + p.indices[i + kAhead] * dim;
        for (int64_t line = 0; line < dim; line += 64) __builtin_prefetch(next + line);
        __builtin_prefetch(p.table.scales + p.indices[i + kAhead] * blocks);
      }
      numerics::DequantiseFp8Row(p.table.values + p.indices[i] * dim, p.table.scales + p.indices[i] * blocks, dim,
                                 p.out + i * dim);
    }
  });
}

void EngramInjectCpu(const EngramInjectParams& p, ThreadPool& pool) {
  const auto inject = HWY_DYNAMIC_DISPATCH(InjectRow);
  pool.ParallelFor(p.rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      if (p.is_image == nullptr || p.is_image[row] == 0) inject(p, row);
    }
  });
}

}  // namespace senko::ops
#endif
