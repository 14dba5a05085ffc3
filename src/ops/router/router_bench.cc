// Routing at the released dimensions, gate GEMM included.
#include <random>
#include <vector>

#include "benchmark/benchmark.h"
#include "numerics/bf16.h"
#include "ops/router/router.h"

namespace senko::ops {
namespace {

void Route(benchmark::State& state) {
  const int64_t rows = state.range(0), experts = 384, hidden = 5120, topk = 6;
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(rows * hidden)), bias(static_cast<size_t>(experts), 0.1f);
  std::vector<uint16_t> gate(static_cast<size_t>(experts * hidden));
  for (float& f : x) f = normal(random);
  for (uint16_t& g : gate) g = numerics::FloatToBf16(0.01f * normal(random));
  std::vector<float> scores(static_cast<size_t>(rows * experts)), weights(static_cast<size_t>(rows * topk));
  std::vector<int32_t> ids(weights.size()), begin(static_cast<size_t>(experts + 1)), pairs(weights.size());
  RouterParams p;
  p.rows = rows;
  p.num_experts = experts;
  p.topk = topk;
  p.x = x.data();
  p.gate = {WeightFormat::kBf16, experts, hidden, reinterpret_cast<const uint8_t*>(gate.data()), nullptr};
  p.bias = p.bias_vl = bias.data();
  p.scores = scores.data();
  p.ids = ids.data();
  p.weights = weights.data();
  ThreadPool pool;
  for (auto _ : state) {
    RouterCpu(p, pool);
    MakeDispatchLists(ids.data(), rows, topk, experts, {begin.data(), pairs.data()});
  }
  state.SetItemsProcessed(state.iterations() * rows);
  state.SetBytesProcessed(state.iterations() * p.gate.bytes());
}
BENCHMARK(Route)->Arg(1)->Arg(64)->UseRealTime();

}  // namespace
}  // namespace senko::ops
