// One row's scores over a long context: keys per second, integer multiply-adds per second, and the machine's
// own limit.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "benchmark/benchmark.h"
#include "hwy/base.h"
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

#if defined(__x86_64__)
HWY_PUSH_ATTRIBUTES("avx512f,avx512vnni")
// The machine's limit: independent chains of byte dot products and nothing else.
HWY_NOINLINE int DotChains(int64_t rounds) {
  __m512i sum[16];
  for (auto& s : sum) s = _mm512_set1_epi32(static_cast<int>(rounds));
  __m512i x = _mm512_set1_epi8(1);
  for (int64_t i = 0; i < rounds; ++i) {
    for (auto& s : sum) s = _mm512_dpbusd_epi32(s, x, x);
    asm volatile("" : "+v"(x));
  }
  for (auto& s : sum) x = _mm512_add_epi32(x, s);
  return _mm512_cvtsi512_si32(x);
}
HWY_POP_ATTRIBUTES

void Int8Peak(benchmark::State& state) {
  if (!__builtin_cpu_supports("avx512vnni")) {
    state.SkipWithError("no AVX-512 VNNI");
    return;
  }
  constexpr int64_t kRounds = 100000;
  for (auto _ : state) benchmark::DoNotOptimize(DotChains(kRounds));
  state.counters["int8_MAC/s"] =
      benchmark::Counter(static_cast<double>(state.iterations() * kRounds * 16 * 64), benchmark::Counter::kIsRate);
}
BENCHMARK(Int8Peak);
#endif

}  // namespace
}  // namespace senko::ops
