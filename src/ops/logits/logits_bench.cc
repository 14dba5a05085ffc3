// The head at the released dimensions: 1.3 GB of bf16 weights for every row or block of rows.
#include <vector>

#include "base/thread_pool.h"
#include "benchmark/benchmark.h"
#include "ops/logits/logits.h"

namespace senko::ops {
namespace {

constexpr int64_t kVocab = 129280, kHidden = 5120;

void Head(benchmark::State& state) {
  const int64_t rows = state.range(0);
  const std::vector<uint16_t> weights(static_cast<size_t>(kVocab * kHidden), 0x3C00);
  const std::vector<float> x(static_cast<size_t>(rows * kHidden), 0.5f);
  std::vector<float> logits(static_cast<size_t>(rows * kVocab));
  std::vector<uint8_t> finite(static_cast<size_t>(rows));
  const WeightView head{WeightFormat::kBf16, kVocab, kHidden, reinterpret_cast<const uint8_t*>(weights.data()),
                        nullptr};
  ThreadPool pool;
  for (auto _ : state) {
    LogitsCpu({rows, x.data(), head, logits.data()}, finite.data(), pool);
    benchmark::DoNotOptimize(logits.data());
  }
  state.SetBytesProcessed(state.iterations() * head.bytes());
}
BENCHMARK(Head)->Arg(1)->Arg(8)->UseRealTime();

}  // namespace
}  // namespace senko::ops
