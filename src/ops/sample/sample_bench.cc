// One draw from a full vocabulary: `peaked` as a language model's logits are (a few likely tokens over a
// broad floor), or flat, where the nucleus holds tens of thousands.
#include <cmath>
#include <random>
#include <vector>

#include "benchmark/benchmark.h"
#include "ops/sample/sample.h"

namespace senko::ops {
namespace {

std::vector<float> Logits(bool peaked) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, 2.5f);
  std::vector<float> logits(129280);
  for (float& l : logits) l = normal(random);
  for (int i = 0; peaked && i < 300; ++i)
    logits[random() % logits.size()] = 20.0f - 2.0f * std::log(1.0f + static_cast<float>(i));
  return logits;
}

template <int64_t (*kSample)(const SampleParams&)>
void Draw(benchmark::State& state) {
  const auto logits = Logits(state.range(2) != 0);
  SampleParams p{129280, logits.data(), 1.0f, state.range(0), static_cast<float>(state.range(1)) / 100, 0, 1, 0, 0};
  for (auto _ : state) {
    ++p.position;
    benchmark::DoNotOptimize(kSample(p));
  }
}
BENCHMARK(Draw<SampleCpu>)
    ->ArgNames({"top_k", "top_p%", "peaked"})
    ->Args({0, 100, 1})
    ->Args({0, 95, 1})
    ->Args({40, 95, 1})
    ->Args({0, 95, 0});
BENCHMARK(Draw<SampleReference>)->ArgNames({"top_k", "top_p%", "peaked"})->Args({0, 95, 1});

}  // namespace
}  // namespace senko::ops
