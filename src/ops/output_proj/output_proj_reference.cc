// The truth: one dot product at a time, in double. (A group's rows need not start on an FP8 scale tile.)
#include "numerics/bf16.h"
#include "ops/linear/weight_at.h"
#include "ops/output_proj/output_proj.h"

namespace senko::ops {

void OutputProjReference(const OutputProjParams& p, ThreadPool& pool) {
  const int64_t width = p.wo_a.out, rank = width / p.groups, in = p.wo_a.in;
  pool.ParallelFor(width, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t r = 0; r < p.rows; ++r) {
        const float* o = p.o + (r * p.groups + n / rank) * in;
        double sum = 0;
        for (int64_t k = 0; k < in; ++k) sum += static_cast<double>(o[k]) * WeightAt(p.wo_a, n, k);
        const float value = static_cast<float>(sum);
        p.u[r * width + n] = p.round_bf16 ? numerics::RoundToBf16(value) : value;
      }
    }
  });
  if (p.round_activations) RoundActivationsReference(p.u, p.u, p.rows, width, pool);
  LinearParams down;
  down.rows = p.rows;
  down.x = p.u;
  down.x_stride = width;
  down.weight = p.wo_b;
  down.y = p.y;
  down.y_stride = p.wo_b.out;
  down.round_bf16 = p.round_bf16;
  LinearReference(down, pool);
}

}  // namespace senko::ops
