// Selection of one decode row over a long context, of prefill rows, and of rows restricted to candidate
// blocks.
#include "benchmark/benchmark.h"
#include "ops/select/select_fixture.h"

namespace senko::ops {
namespace {

constexpr int64_t kTopk = 512, kBlocks = 2048, kBlockSize = 8;

IndexShape Shape(int64_t rows, int64_t entries) {
  return {.heads = 32, .dim = 128, .entries = entries, .rows = rows, .entries_per_page = 128};
}

void Report(benchmark::State& state, int64_t keys) {
  state.counters["keys/s"] =
      benchmark::Counter(static_cast<double>(state.iterations() * keys), benchmark::Counter::kIsRate);
}

void Unrestricted(benchmark::State& state) {
  const int64_t rows = state.range(0), entries = state.range(1);
  SelectFixture f(Shape(rows, entries), 1, kTopk);
  f.Publish(kBlocks, kBlockSize);
  ThreadPool pool;
  for (auto _ : state) SelectCpu(f.params, pool);
  Report(state, rows * entries);
}
BENCHMARK(Unrestricted)->Args({1, 1 << 20})->Args({1, 1 << 16})->Args({64, 1 << 14})->UseRealTime();

void Candidates(benchmark::State& state) {
  const int64_t rows = state.range(0);
  SelectFixture f(Shape(rows, 1 << 18), 1, kTopk);
  f.Publish(kBlocks, kBlockSize);
  ThreadPool pool;
  SelectCpu(f.params, pool);
  f.RestrictToPublished();
  for (auto _ : state) SelectCpu(f.params, pool);
  Report(state, rows * kBlocks * kBlockSize);
}
BENCHMARK(Candidates)->Arg(1)->Arg(16)->UseRealTime();

}  // namespace
}  // namespace senko::ops
