#include "ops/logits/logits.h"

namespace senko::ops {

void LogitsReference(const LogitsParams& p, ThreadPool& pool) {
  LinearParams linear;
  linear.rows = p.rows;
  linear.x = p.x;
  linear.x_stride = p.head.in;
  linear.weight = p.head;
  linear.y = p.logits;
  linear.y_stride = p.head.out;
  LinearReference(linear, pool);
}

}  // namespace senko::ops
