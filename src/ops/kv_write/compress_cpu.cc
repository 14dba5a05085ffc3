// The compressor's pooling: a softmax over two tokens per channel, then RMSNorm.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/kv_write/compress_cpu.cc"
#include <hwy/foreach_target.h>
// after foreach_target.h, as Highway wants it
#include <algorithm>

#include "numerics/simd/lanes-inl.h"
#include "numerics/simd/math-inl.h"
#include "ops/kv_write/kv_write.h"
#include "ops/kv_write/pending_pair.h"
#include "ops/norm/rms_row.h"

HWY_BEFORE_NAMESPACE();
namespace senko::ops::HWY_NAMESPACE {
namespace {

namespace v = numerics::HWY_NAMESPACE;

// out[dim] = the pooled pair. dim is a multiple of 16.
void PoolPair(const PairRows& pair, int64_t dim, bool round_bf16, float* out) {
  for (int64_t d = 0; d < dim; d += 16) {
    const v::F32x16 z0 = v::LoadU16(pair.z0 + d), z1 = v::LoadU16(pair.z1 + d);
    // The larger of the two exponentials is exp(0) = 1, but both are taken: a NaN must reach both weights.
    const v::F32x16 top = v::Max(z0, z1);
    const v::F32x16 e0 = v::Exp(v::Sub(z0, top)), e1 = v::Exp(v::Sub(z1, top));
    const v::F32x16 sum = v::Add(e0, e1);
    const v::F32x16 first = v::Mul(v::Div(e0, sum), v::LoadU16(pair.c0 + d));
    v::F32x16 pooled = v::Add(first, v::Mul(v::Div(e1, sum), v::LoadU16(pair.c1 + d)));
    if (round_bf16) pooled = v::RoundToBf16(pooled);
    v::StoreU16(pooled, out + d);
  }
}

}  // namespace
}  // namespace senko::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace senko::ops {

HWY_EXPORT(PoolPair);

void CompressCpu(const CompressParams& p, ThreadPool& pool) {
  const auto pool_pair = HWY_DYNAMIC_DISPATCH(PoolPair);
  pool.ParallelFor(p.count, 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      float* out = p.out + i * p.dim;
      const float* latent = p.c + p.latents[i].row * p.dim;
      if (p.ratio == 2) {
        pool_pair(FindPair(p, p.latents[i]), p.dim, p.round_bf16, out);
        latent = out;
      }
      RmsNormRowCpu(latent, p.norm_weight, p.dim, p.rms_eps, p.round_bf16, out);
    }
  });
}

}  // namespace senko::ops
#endif
