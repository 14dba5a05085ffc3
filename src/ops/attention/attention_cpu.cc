// How rows and stages are spread over threads. Nothing here changes a bit of the result.
#include <algorithm>

#include "base/check.h"
#include "numerics/packed_rows.h"
#include "ops/attention/attention.h"
#include "ops/attention/stages.h"

namespace senko::ops {
namespace {

// Reused from call to call, so that nothing is allocated after the first.
float* Grow(Buffer<float>& buffer, int64_t count) {
  if (buffer.size() < static_cast<size_t>(count)) buffer = Buffer<float>(static_cast<size_t>(count));
  return buffer.data();
}

RowScratch& ThreadRowScratch() {
  thread_local RowScratch scratch;
  return scratch;
}

float* ThreadTile(int64_t dim) {
  thread_local TileScratch scratch;
  return scratch.Prepare(dim);
}

void AttendWholeRow(const AttentionParams& p, int64_t row, const Stages& stages) {
  const RowWork work = ThreadRowScratch().Prepare(p, row);
  float* tile = ThreadTile(p.dim);
  stages.rotate(work, 0, p.heads);
  stages.score(work, 0, work.panels(), tile);
  stages.weigh(work, 0, p.heads);
  stages.mix(work, 0, p.dim, tile);
}

// Decode: one row over all threads, a barrier between stages.
void AttendSharedRow(const AttentionParams& p, int64_t row, const Stages& stages, ThreadPool& pool) {
  const RowWork work = ThreadRowScratch().Prepare(p, row);
  stages.rotate(work, 0, p.heads);  // a microsecond: less than waking the threads
  pool.ParallelFor(work.panels(), 1,
                   [&](int64_t begin, int64_t end, int) { stages.score(work, begin, end, ThreadTile(p.dim)); });
  pool.ParallelFor(p.heads, 4, [&](int64_t begin, int64_t end, int) { stages.weigh(work, begin, end); });
  const int64_t slices = p.dim / 32;
  const int64_t grain = std::max<int64_t>(1, slices / (2 * pool.size()));
  pool.ParallelFor(slices, grain,
                   [&](int64_t begin, int64_t end, int) { stages.mix(work, begin * 32, end * 32, ThreadTile(p.dim)); });
}

}  // namespace

RowWork RowScratch::Prepare(const AttentionParams& p, int64_t row) {
  RowWork work;
  work.p = &p;
  work.row = row;
  work.keys = FindKeyRows(p, row);
  work.window_columns = numerics::RoundUp(work.keys.num_window, kPanel);
  work.columns = work.window_columns + numerics::RoundUp(work.keys.num_selected, kPanel);
  work.rotated = Grow(rotated, p.heads * p.rope_dim);
  work.scores = Grow(scores, p.heads * work.columns);
  work.denominators = Grow(denominators, p.heads);
  return work;
}

float* TileScratch::Prepare(int64_t dim) { return Grow(tile, std::max(dim, kKeyBlock) * kPanel); }

void AttentionCpu(const AttentionParams& p, ThreadPool& pool) {
  SENKO_CHECK(p.dim > 0 && p.dim % 32 == 0 && p.rope_dim % 2 == 0 && p.rope_dim <= p.dim);
  const Stages stages = CpuStages();
  // Whole rows while every thread has one; the rest, and decode, row by row over all threads.
  const int64_t threads = pool.size();
  const int64_t whole = threads == 1 ? p.rows.num_rows : p.rows.num_rows / threads * threads;
  pool.ParallelFor(whole, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) AttendWholeRow(p, row, stages);
  });
  for (int64_t row = whole; row < p.rows.num_rows; ++row) AttendSharedRow(p, row, stages, pool);
}

}  // namespace senko::ops
