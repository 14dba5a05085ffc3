// The head is one more linear; a row is then scanned for NaN and infinity while it is still in cache.
#include <bit>

#include "ops/logits/logits.h"

namespace senko::ops {
namespace {

bool AllFinite(const float* x, int64_t n) {
  uint32_t any = 0;  // a compare per value, no early exit: the loop vectorises
  for (int64_t i = 0; i < n; ++i) any |= (std::bit_cast<uint32_t>(x[i]) & 0x7F800000u) == 0x7F800000u;
  return any == 0;
}

}  // namespace

void LogitsCpu(const LogitsParams& p, uint8_t* finite, ThreadPool& pool) {
  LinearParams linear;
  linear.rows = p.rows;
  linear.x = p.x;
  linear.x_stride = p.head.in;
  linear.weight = p.head;
  linear.y = p.logits;
  linear.y_stride = p.head.out;
  LinearCpu(linear, pool);
  if (finite == nullptr) return;
  pool.ParallelFor(p.rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) finite[r] = AllFinite(p.logits + r * p.head.out, p.head.out);
  });
}

}  // namespace senko::ops
