// Hyper-connections at the released dimensions: bytes moved per second.
#include <random>
#include <vector>

#include "benchmark/benchmark.h"
#include "ops/mhc/mhc.h"

namespace senko::ops {
namespace {

constexpr int64_t kHc = 4, kHidden = 5120, kOutputs = (2 + kHc) * kHc;

std::vector<float> Fill(int64_t n, float scale) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = normal(random);
  return v;
}

void Mix(benchmark::State& state) {
  const int64_t rows = state.range(0);
  const auto x = Fill(rows * kHc * kHidden, 1), fn = Fill(kOutputs * kHc * kHidden, 0.01f), base = Fill(kOutputs, 1),
             scale = Fill(3, 1);
  std::vector<float> mixes(static_cast<size_t>(rows * kOutputs)), pre(static_cast<size_t>(rows * kHc)), post(pre),
      comb(static_cast<size_t>(rows * kHc * kHc));
  MhcMixParams p{rows,
                 kHc,
                 kHidden,
                 x.data(),
                 {WeightFormat::kF32, kOutputs, kHc * kHidden, reinterpret_cast<const uint8_t*>(fn.data()), nullptr},
                 base.data(),
                 scale.data(),
                 1e-20f,
                 1e-6f,
                 20,
                 mixes.data(),
                 pre.data(),
                 post.data(),
                 comb.data()};
  ThreadPool pool;
  for (auto _ : state) MhcMixCpu(p, pool);
  state.SetBytesProcessed(state.iterations() * (p.fn.bytes() + rows * kHc * kHidden * 4));
  state.SetItemsProcessed(state.iterations() * rows);
}
BENCHMARK(Mix)->Arg(1)->Arg(64)->UseRealTime();

void Collapse(benchmark::State& state) {
  const int64_t rows = state.range(0);
  const auto x = Fill(rows * kHc * kHidden, 1), pre = Fill(rows * kHc, 1), weight = Fill(kHidden, 1);
  std::vector<float> y(static_cast<size_t>(rows * kHidden));
  MhcCollapseParams p{rows, kHc, kHidden, x.data(), pre.data(), weight.data(), 1e-20f, true, y.data()};
  ThreadPool pool;
  for (auto _ : state) MhcCollapseCpu(p, pool);
  state.SetBytesProcessed(state.iterations() * rows * (kHc + 1) * kHidden * 4);
}
BENCHMARK(Collapse)->Arg(1)->Arg(64)->UseRealTime();

void Expand(benchmark::State& state) {
  const int64_t rows = state.range(0);
  auto x = Fill(rows * kHc * kHidden, 1);
  const auto y = Fill(rows * kHidden, 1), post = Fill(rows * kHc, 0.1f), comb = Fill(rows * kHc * kHc, 0.1f);
  MhcExpandParams p{rows, kHc, kHidden, y.data(), post.data(), comb.data(), true, x.data()};
  ThreadPool pool;
  for (auto _ : state) MhcExpandCpu(p, pool);
  state.SetBytesProcessed(state.iterations() * rows * (2 * kHc + 1) * kHidden * 4);
}
BENCHMARK(Expand)->Arg(1)->Arg(64)->UseRealTime();

}  // namespace
}  // namespace senko::ops
