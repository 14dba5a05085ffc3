// Cuts linears into spans of outputs and hands them to the threads.
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "numerics/row_quantise.h"
#include "ops/linear/linear.h"
#include "ops/linear/linear_span.h"
#include "tensor/buffer.h"

namespace senko::ops {
namespace {

constexpr int kMaxLinears = 16;
constexpr int64_t kPieceRows = 128;       // rows worth a panel of their own
constexpr int64_t kPackedRowBlock = 256;  // rows of x packed at a time for FP4 weights

void CheckLinear(const LinearParams& p) {
  const bool scaled = p.weight.format == WeightFormat::kFp8 || p.weight.format == WeightFormat::kFp4;
  SENKO_CHECK(p.rows >= 0 && p.weight.in > 0 && p.weight.out >= 0 && p.x_stride >= p.weight.in);
  SENKO_CHECK(!scaled || p.weight.in % 32 == 0);
}

// Grows to the largest call and stays: nothing is allocated once a model's shapes have been seen.
struct CallScratch {
  std::vector<const float*> x;
  std::vector<const float*> packed_x;
  std::vector<float*> y;
  Buffer<float> packed;
};

// Outputs per task. A narrow projection streamed for few rows (the 24 mixes of mHC over 20,480 columns) is cut finer,
// so that its weights come through every core; FP8 keeps to whole scale tiles.
int64_t TaskOutputs(const WeightView& weight, int64_t rows, int threads) {
  const int64_t outputs = SpanOutputs(rows);
  if (rows > kSkinnyRows || weight.format == WeightFormat::kFp8) return outputs;
  const int64_t share = (weight.out / (2 * threads) + 3) / 4 * 4;
  return std::clamp<int64_t>(share, 4, outputs);
}

// All linears over rows [row0, row0 + rows) of their common x.
void RunRows(const LinearParams* p, int count, int64_t row0, int64_t rows, CallScratch& s, ThreadPool& pool) {
  const LinearParams& first = p[0];
  const int64_t packed_floats = PackedFloats(first.weight.in);
  bool pack = false;
  for (int i = 0; i < count; ++i) pack = pack || NeedsPacking(p[i].weight.format);
  if (pack && s.packed.size() < static_cast<size_t>(rows * packed_floats)) {
    s.packed = Buffer<float>(static_cast<size_t>(rows * packed_floats));
  }
  s.x.resize(rows);
  s.packed_x.resize(rows);
  s.y.resize(rows * count);
  for (int64_t r = 0; r < rows; ++r) {
    s.x[r] = first.x + (row0 + r) * first.x_stride;
    s.packed_x[r] = s.packed.data() + r * packed_floats;
    for (int i = 0; i < count; ++i) s.y[i * rows + r] = p[i].y + (row0 + r) * p[i].y_stride;
  }
  const PackFor pack_for = rows <= kSkinnyRows ? PackFor::kFewRows : PackFor::kManyRows;
  if (pack) {
    pool.ParallelFor(rows, 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r)
        PackRow(s.x[r], first.weight.in, pack_for, s.packed.data() + r * packed_floats);
    });
  }
  int64_t outputs[kMaxLinears], first_task[kMaxLinears + 1] = {0};
  for (int i = 0; i < count; ++i) {
    outputs[i] = TaskOutputs(p[i].weight, rows, pool.size());
    first_task[i + 1] = first_task[i] + (p[i].weight.out + outputs[i] - 1) / outputs[i];
  }
  // Too few blocks of outputs for the threads: cut the rows too.
  const int64_t blocks = first_task[count];
  const int64_t piece_rows = blocks < 4 * pool.size() ? std::min(rows, kPieceRows) : rows;
  const int64_t pieces = (rows + piece_rows - 1) / piece_rows;
  pool.ParallelFor(blocks * pieces, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t piece_task = begin; piece_task < end; ++piece_task) {
      const int64_t task = piece_task / pieces, row = piece_task % pieces * piece_rows;
      int i = 0;
      while (task >= first_task[i + 1]) ++i;
      LinearSpan span;
      span.rows = std::min(piece_rows, rows - row);
      span.x = (NeedsPacking(p[i].weight.format) ? s.packed_x.data() : s.x.data()) + row;
      span.weight = p[i].weight;
      span.begin = (task - first_task[i]) * outputs[i];
      span.end = std::min(span.begin + outputs[i], p[i].weight.out);
      span.y = s.y.data() + i * rows + row;
      span.round_bf16 = p[i].round_bf16;
      RunSpan(span);
    }
  });
}

}  // namespace

void LinearManyCpu(const LinearParams* p, int count, ThreadPool& pool) {
  SENKO_CHECK(count >= 1 && count <= kMaxLinears);
  bool pack = false;
  for (int i = 0; i < count; ++i) {
    CheckLinear(p[i]);
    SENKO_CHECK(p[i].x == p[0].x && p[i].rows == p[0].rows && p[i].x_stride == p[0].x_stride);
    SENKO_CHECK(p[i].weight.in == p[0].weight.in);
    pack = pack || NeedsPacking(p[i].weight.format);
  }
  thread_local CallScratch scratch;
  const int64_t block = pack ? kPackedRowBlock : std::max<int64_t>(p[0].rows, 1);
  for (int64_t row0 = 0; row0 < p[0].rows; row0 += block) {
    RunRows(p, count, row0, std::min(block, p[0].rows - row0), scratch, pool);
  }
}

void LinearCpu(const LinearParams& p, ThreadPool& pool) { LinearManyCpu(&p, 1, pool); }

void RoundActivationsCpu(const float* x, float* xq, int64_t rows, int64_t cols, ThreadPool& pool) {
  pool.ParallelFor(rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) numerics::QdqFp8Row(x + r * cols, cols, xq + r * cols, true);
  });
}

}  // namespace senko::ops
