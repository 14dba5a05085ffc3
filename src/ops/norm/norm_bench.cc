// RMSNorm of rows that fit the cache and of rows that do not; bytes are x read, weight read, y written.
#include <benchmark/benchmark.h>

#include <vector>

#include "ops/norm/norm.h"

namespace senko::ops {
namespace {

void BM_RmsNorm(benchmark::State& state) {
  const int64_t rows = state.range(0), cols = state.range(1);
  std::vector<float> x(static_cast<size_t>(rows * cols), 0.5f), w(static_cast<size_t>(cols), 1.0f), y(x.size());
  ThreadPool pool;
  for (auto _ : state) {
    RmsNormCpu({rows, cols, x.data(), w.data(), 1e-20f, y.data(), true}, pool);
    benchmark::DoNotOptimize(y.data());
  }
  state.SetBytesProcessed(state.iterations() * (2 * rows * cols + cols) * 4);
}
BENCHMARK(BM_RmsNorm)->Args({1, 5120})->Args({2048, 5120})->Args({2048, 512})->UseRealTime();

void BM_RopeTable(benchmark::State& state) {
  const int64_t rows = state.range(0);
  std::vector<int64_t> positions(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) positions[static_cast<size_t>(r)] = 100000 + r;
  RopeSpec spec;
  spec.rope_dim = 64;
  spec.base = 10000;
  const auto inv_freq = RopeInvFreq(spec);
  std::vector<float> table(static_cast<size_t>(rows * 64));
  for (auto _ : state) {
    RopeTable(positions.data(), rows, inv_freq.data(), 32, table.data());
    benchmark::DoNotOptimize(table.data());
  }
  state.SetItemsProcessed(state.iterations() * rows * 32);
}
BENCHMARK(BM_RopeTable)->Arg(1)->Arg(2048);

}  // namespace
}  // namespace senko::ops
