#include "base/check.h"
#include "ops/output_proj/output_proj_sm90.h"

namespace senko::ops {

void OutputProjSm90(const OutputProjSm90Params& p, cudaStream_t stream) {
  SENKO_CHECK(p.groups > 0 && p.wo_a.out % p.groups == 0 && p.wo_b.in == p.wo_a.out);
  LinearSm90Params up;
  up.rows = p.rows;
  up.max_rows = p.max_rows;
  up.x = p.o;
  up.x_stride = p.groups * p.wo_a.in;
  up.weight = p.wo_a;
  up.group_out = p.wo_a.out / p.groups;
  up.y_bf16 = p.u;
  up.y_stride = p.wo_a.out;
  up.round_activations = p.round_activations;
  LinearSm90(up, stream);
  LinearSm90Params down;
  down.rows = p.rows;
  down.max_rows = p.max_rows;
  down.x = p.u;
  down.x_stride = p.wo_b.in;
  down.weight = p.wo_b;
  down.y_bf16 = p.y;
  down.y_stride = p.wo_b.out;
  LinearSm90(down, stream);
}

void OutputProjSm90(const BasicOutputProjSm90Params<float>& p, cudaStream_t stream) {
  SENKO_CHECK(p.groups > 0 && p.wo_a.out % p.groups == 0 && p.wo_b.in == p.wo_a.out && !p.round_activations);
  LinearFloatSm90Params up;
  up.rows = p.rows;
  up.max_rows = p.max_rows;
  up.x = p.o;
  up.x_stride = p.groups * p.wo_a.in;
  up.weight = p.wo_a;
  up.group_out = p.wo_a.out / p.groups;
  up.y = p.u;
  up.y_stride = p.wo_a.out;
  LinearFloatSm90(up, stream);
  LinearFloatSm90Params down;
  down.rows = p.rows;
  down.max_rows = p.max_rows;
  down.x = p.u;
  down.x_stride = p.wo_b.in;
  down.weight = p.wo_b;
  down.y = p.y;
  down.y_stride = p.wo_b.out;
  LinearFloatSm90(down, stream);
}

}  // namespace senko::ops
