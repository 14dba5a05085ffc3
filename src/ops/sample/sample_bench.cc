// From a full vocabulary's logits to a token: `peaked` as a language model's logits are (a few likely tokens over a
// broad floor), or flat, where the nucleus holds tens of thousands.
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "benchmark/benchmark.h"
#include "ops/sample/logprobs.h"
#include "ops/sample/processors.h"
#include "ops/sample/sample.h"

namespace senko::ops {
namespace {

constexpr int64_t kVocab = 129280;

std::vector<float> Logits(bool peaked) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, 2.5f);
  std::vector<float> logits(kVocab);
  for (float& l : logits) l = normal(random);
  for (int i = 0; peaked && i < 300; ++i)
    logits[random() % logits.size()] = 20.0f - 2.0f * std::log(1.0f + static_cast<float>(i));
  return logits;
}

template <int64_t (*kSample)(const SampleParams&)>
void Draw(benchmark::State& state) {
  const auto logits = Logits(state.range(3) != 0);
  SampleParams p{kVocab,
                 logits.data(),
                 static_cast<float>(state.range(0)),
                 state.range(1),
                 static_cast<float>(state.range(2)) / 100,
                 0,
                 1,
                 0,
                 0};
  for (auto _ : state) {
    ++p.position;
    benchmark::DoNotOptimize(kSample(p));
  }
}
BENCHMARK(Draw<SampleCpu>)
    ->ArgNames({"T", "top_k", "top_p%", "peaked"})
    ->Args({0, 0, 100, 1})
    ->Args({1, 0, 100, 1})
    ->Args({1, 0, 95, 1})
    ->Args({1, 50, 100, 1})
    ->Args({1, 50, 95, 1})
    ->Args({1, 0, 95, 0});
BENCHMARK(Draw<SampleReference>)->ArgNames({"T", "top_k", "top_p%", "peaked"})->Args({1, 0, 95, 1});

// Penalties over a prompt and an answer of 1,000 tokens each, the copy that keeps the row included.
template <int64_t (*kProcess)(const ProcessorParams&)>
void Penalties(benchmark::State& state) {
  const auto logits = Logits(true);
  std::vector<float> row(kVocab);
  std::vector<int32_t> prompt;
  std::vector<OutputCount> output;
  for (int32_t i = 0; i < 1000; ++i) {
    prompt.push_back(i * 129);
    output.push_back({i * 129 + (i % 2), 1 + i % 3, i % 2 == 0});
  }
  ProcessorParams p;
  p.vocab = kVocab;
  p.logits = row.data();
  p.repetition = 1.1f;
  p.frequency = 0.2f;
  p.presence = 0.1f;
  p.prompt = prompt;
  p.output = output;
  for (auto _ : state) {
    std::memcpy(row.data(), logits.data(), row.size() * sizeof(float));
    benchmark::DoNotOptimize(kProcess(p));
    benchmark::ClobberMemory();
  }
}
BENCHMARK(Penalties<ProcessCpu>);
BENCHMARK(Penalties<ProcessReference>);

// A grammar's mask: `allowed%` of the vocabulary may follow.
template <int64_t (*kProcess)(const ProcessorParams&)>
void Mask(benchmark::State& state) {
  const auto logits = Logits(true);
  std::vector<float> row = logits;
  std::mt19937_64 random(2);
  std::vector<uint32_t> allowed(kVocab / 32, 0);
  for (int64_t v = 0; v < kVocab; ++v) {
    if (static_cast<int64_t>(random() % 100) < state.range(0)) allowed[static_cast<size_t>(v / 32)] |= 1u << (v % 32);
  }
  ProcessorParams p;
  p.vocab = kVocab;
  p.logits = row.data();
  p.allowed = allowed.data();
  for (auto _ : state) {
    std::memcpy(row.data(), logits.data(), row.size() * sizeof(float));
    benchmark::DoNotOptimize(kProcess(p));
    benchmark::ClobberMemory();
  }
}
BENCHMARK(Mask<ProcessCpu>)->ArgName("allowed%")->Arg(1)->Arg(50)->Arg(100);
BENCHMARK(Mask<ProcessReference>)->ArgName("allowed%")->Arg(50);

template <bool (*kLogprobs)(const LogprobParams&)>
void Logprobs(benchmark::State& state) {
  const auto logits = Logits(true);
  std::vector<LogprobEntry> top(static_cast<size_t>(state.range(0)));
  LogprobEntry entry;
  for (auto _ : state) {
    benchmark::DoNotOptimize(kLogprobs({kVocab, logits.data(), 1234, &entry, top}));
    benchmark::ClobberMemory();
  }
}
BENCHMARK(Logprobs<LogprobsCpu>)->ArgName("top")->Arg(0)->Arg(20);
BENCHMARK(Logprobs<LogprobsReference>)->ArgName("top")->Arg(20);

}  // namespace
}  // namespace senko::ops
