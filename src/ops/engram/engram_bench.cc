// Engram at the released dimensions: table rows gathered per second, and injection's bytes moved.
#include <vector>

#include "base/random.h"
#include "base/thread_pool.h"
#include "benchmark/benchmark.h"
#include "ops/engram/engram.h"

namespace senko::ops {
namespace {

constexpr int64_t kSlots = 24, kDim = 256, kStreams = 4, kHidden = 5120, kTableRows = int64_t{1} << 20;

std::vector<float> Fill(int64_t n, uint64_t seed) {
  std::vector<float> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i) {
    v[i] = static_cast<float>(static_cast<int32_t>(PhiloxDraw(seed, i, 0).word[0] % 257) - 128) / 64.0f;
  }
  return v;
}

// A table of 277 MB in memory, so that most rows miss the caches.
void Gather(benchmark::State& state) {
  const int64_t rows = state.range(0);
  const std::vector<uint8_t> values(static_cast<size_t>(kTableRows * kDim), 0x38);
  const std::vector<uint8_t> scales(static_cast<size_t>(kTableRows * kDim / 32), 127);
  std::vector<int64_t> indices(static_cast<size_t>(rows * kSlots));
  for (size_t i = 0; i < indices.size(); ++i) indices[i] = PhiloxDraw(1, i, 0).word[0] % kTableRows;
  std::vector<float> out(indices.size() * kDim);
  ThreadPool pool;
  for (auto _ : state) {
    EngramGatherCpu({rows, kSlots, indices.data(), {values.data(), scales.data(), kTableRows, kDim}, out.data()}, pool);
    benchmark::DoNotOptimize(out.data());
  }
  state.SetItemsProcessed(state.iterations() * rows * kSlots);
  state.SetBytesProcessed(state.iterations() * rows * kSlots * (kDim + kDim / 32));
}
BENCHMARK(Gather)->Arg(1)->Arg(512)->UseRealTime();

void Inject(benchmark::State& state) {
  const int64_t rows = state.range(0);
  const auto kv = Fill(rows * (kStreams + 1) * kHidden, 2), weight = Fill(kStreams * kHidden, 3);
  auto x = Fill(rows * kStreams * kHidden, 4);
  ThreadPool pool;
  for (auto _ : state) {
    EngramInjectParams p;
    p.rows = rows;
    p.streams = kStreams;
    p.hidden = kHidden;
    p.kv = kv.data();
    p.q_weight = weight.data();
    p.k_weight = weight.data();
    p.rms_eps = 1e-20f;
    p.round_bf16 = true;
    p.x = x.data();
    EngramInjectCpu(p, pool);
    benchmark::DoNotOptimize(x.data());
  }
  state.SetBytesProcessed(state.iterations() * rows * (3 * kStreams + 1) * kHidden *
                          static_cast<int64_t>(sizeof(float)));
}
BENCHMARK(Inject)->Arg(1)->Arg(512)->UseRealTime();

}  // namespace
}  // namespace senko::ops
