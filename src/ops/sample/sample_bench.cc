// One draw from a full vocabulary whose logits look like a language model's.
#include <random>
#include <vector>

#include "benchmark/benchmark.h"
#include "ops/sample/sample.h"

namespace senko::ops {
namespace {

std::vector<float> Logits() {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, 2.5f);
  std::vector<float> logits(129280);
  for (float& l : logits) l = normal(random);
  return logits;
}

template <int64_t (*kSample)(const SampleParams&)>
void Draw(benchmark::State& state) {
  const auto logits = Logits();
  SampleParams p{
      129280, logits.data(), 1.0f, state.range(0), static_cast<float>(state.range(1)) / 100, 0, 1, 0, 0};
  for (auto _ : state) {
    ++p.position;
    benchmark::DoNotOptimize(kSample(p));
  }
}
BENCHMARK(Draw<SampleCpu>)->ArgNames({"top_k", "top_p%"})->Args({0, 100})->Args({0, 95})->Args({40, 95});
BENCHMARK(Draw<SampleReference>)->ArgNames({"top_k", "top_p%"})->Args({0, 95});

}  // namespace
}  // namespace senko::ops
