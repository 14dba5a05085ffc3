// One row's scores over a long context: keys per second and integer multiply-adds per second.
#include "benchmark/benchmark.h"
#include "ops/index_score/index_fixture.h"
#include "ops/index_score/index_score.h"

namespace senko::ops {
namespace {

constexpr int64_t kTile = 2048;

void Count(benchmark::State& state, const IndexShape& shape) {
  const double keys = static_cast<double>(state.iterations() * shape.entries);
  state.counters["keys/s"] = benchmark::Counter(keys, benchmark::Counter::kIsRate);
  state.counters["int8_MAC/s"] =
      benchmark::Counter(keys * static_cast<double>(shape.heads * shape.dim), benchmark::Counter::kIsRate);
  state.SetBytesProcessed(state.iterations() * shape.entries * (shape.dim / 2 + shape.dim / 32));
}

void ScoreContext(benchmark::State& state) {
  const IndexShape shape{.heads = 32, .dim = 128, .entries = state.range(0), .entries_per_page = 128};
  IndexFixture f(shape, 1);
  std::vector<float> scores(kTile);
  for (auto _ : state) {
    for (int64_t begin = 0; begin < shape.entries; begin += kTile) {
      IndexScoreCpu(f.params, 0, begin, std::min(kTile, shape.entries - begin), scores.data());
      benchmark::DoNotOptimize(scores.data());
    }
  }
  Count(state, shape);
}
BENCHMARK(ScoreContext)->Arg(16384)->Arg(1 << 20);

void ScoreReference(benchmark::State& state) {
  const IndexShape shape{.heads = 32, .dim = 128, .entries = 512, .entries_per_page = 128};
  IndexFixture f(shape, 1);
  std::vector<float> scores(512);
  for (auto _ : state) {
    IndexScoreReference(f.params, 0, 0, shape.entries, scores.data());
    benchmark::DoNotOptimize(scores.data());
  }
  Count(state, shape);
}
BENCHMARK(ScoreReference);

}  // namespace
}  // namespace senko::ops
