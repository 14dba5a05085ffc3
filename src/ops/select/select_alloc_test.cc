// Selection allocates for its first call only: scratch stays with its threads.
#include "gtest/gtest.h"
#include "ops/count_allocations.h"
#include "ops/select/select_fixture.h"
#include "tensor/buffer.h"

namespace senko::ops {
namespace {

struct Work {
  SelectFixture publishing, restricted;
  std::vector<float> q, rope;
  std::vector<uint8_t> values, scales;
  IndexQueryParams query;

  Work(int64_t rows, int64_t entries)
      : publishing(Shape(rows, entries), 5, 64), restricted(Shape(rows, entries), 6, 64) {
    publishing.Publish(200, 8);
    ThreadPool one(1);
    restricted.Publish(200, 8);
    SelectReference(restricted.params, one);
    restricted.RestrictToPublished();
    query = {.rows = 64, .heads = 4, .dim = 64, .rope_dim = 16};
    q.assign(64 * 4 * 64, 0.5f);
    rope.assign(64 * 16, 0.7f);
    values.resize(64 * 4 * 32);
    scales.resize(64 * 4 * 2);
    query.q = q.data();
    query.rope = rope.data();
    query.values = values.data();
    query.scales = scales.data();
  }

  static IndexShape Shape(int64_t rows, int64_t entries) {
    return {.heads = 2, .dim = 32, .entries = entries, .rows = rows, .entries_per_page = 64};
  }

  void Run(ThreadPool& pool) {
    IndexQueryCpu(query, pool);
    SelectCpu(publishing.params, pool);
    SelectCpu(restricted.params, pool);
  }
};

TEST(SelectAllocations, CountsWhatItShould) {
  const int64_t before = allocations;
  std::vector<int> v(100);
  Buffer<int> b(100);
  v[0] = b[0] = 1;
  EXPECT_EQ(allocations - before, 2);
}

TEST(SelectAllocations, NoneAfterTheFirstCallOfOneThread) {
  Work work(24, 9000);
  ThreadPool pool(1);
  work.Run(pool);
  const int64_t before = allocations;
  for (int i = 0; i < 3; ++i) work.Run(pool);
  for (SelectFixture* fixture : {&work.publishing, &work.restricted}) fixture->params.topk = 7;  // less than before
  work.Run(pool);
  EXPECT_EQ(allocations - before, 0);
}

// A thread may take part late, and then warms up late: the number is bounded by the threads, not by the
// calls.
TEST(SelectAllocations, ThreadsWarmUpOnceEach) {
  constexpr int kThreads = 4, kBuffersPerThread = 4;  // two running top-k, the score scratch, a query head
  ThreadPool pool(kThreads);
  for (const int64_t rows : {1, 3, 24}) {
    Work work(rows, 40000);
    work.Run(pool);
    const int64_t before = allocations;
    for (int i = 0; i < 12; ++i) work.Run(pool);
    EXPECT_LE(allocations - before, kThreads * kBuffersPerThread) << rows;
  }
}

}  // namespace
}  // namespace senko::ops
