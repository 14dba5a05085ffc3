// All groups of wo_a in one parallel loop, then wo_b.
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "ops/linear/linear_span.h"
#include "ops/output_proj/output_proj.h"

namespace senko::ops {
namespace {

// Grows to the largest step and stays.
struct RowPointers {
  std::vector<const float*> o;  // [groups, rows]
  std::vector<float*> u;
};

}  // namespace

void OutputProjCpu(const OutputProjParams& p, ThreadPool& pool) {
  if (p.rows <= 0) return;
  SENKO_CHECK(p.groups > 0 && p.wo_a.out % p.groups == 0 && p.wo_b.in == p.wo_a.out);
  SENKO_CHECK(!NeedsPacking(p.wo_a.format));
  const int64_t rank = p.wo_a.out / p.groups, width = p.groups * rank;
  thread_local RowPointers thread_rows;
  RowPointers& rows = thread_rows;
  rows.o.resize(p.groups * p.rows);
  rows.u.resize(p.rows);
  for (int64_t r = 0; r < p.rows; ++r) {
    rows.u[r] = p.u + r * width;
    for (int64_t g = 0; g < p.groups; ++g) rows.o[g * p.rows + r] = p.o + (r * p.groups + g) * p.wo_a.in;
  }
  const int64_t outputs = SpanOutputs(p.rows), blocks = (rank + outputs - 1) / outputs;
  pool.ParallelFor(p.groups * blocks, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t g = task / blocks, first = task % blocks * outputs;
      LinearSpan span;
      span.rows = p.rows;
      span.x = rows.o.data() + g * p.rows;
      span.weight = p.wo_a;
      span.begin = g * rank + first;
      span.end = g * rank + std::min(first + outputs, rank);
      span.y = rows.u.data();
      span.round_bf16 = p.round_bf16;
      RunSpan(span);
    }
  });
  if (p.round_activations) RoundActivationsCpu(p.u, p.u, p.rows, width, pool);
  LinearParams down;
  down.rows = p.rows;
  down.x = p.u;
  down.x_stride = width;
  down.weight = p.wo_b;
  down.y = p.y;
  down.y_stride = p.wo_b.out;
  down.round_bf16 = p.round_bf16;
  LinearCpu(down, pool);
}

}  // namespace senko::ops
