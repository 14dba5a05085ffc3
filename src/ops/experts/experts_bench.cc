// The experts on the released shapes: decode streams the picked experts, prefill expands each once.
// Counters: fractions of the read bandwidth and FMA peak measured at the start of the run.
#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "ops/experts/experts.h"
#include "tensor/buffer.h"
#include "tensor/machine_limits.h"

namespace senko::ops {
namespace {

constexpr int64_t kHidden = 5120, kInter = 2304, kExperts = 32, kTopk = 6;

ThreadPool& Pool() {
  static ThreadPool pool;
  return pool;
}

WeightView View(WeightFormat format, int64_t out, int64_t in, const uint8_t*& next) {
  WeightView w;
  w.format = format;
  w.out = out;
  w.in = in;
  w.data = next;
  w.scale = next + out * w.row_bytes();
  next += w.bytes();
  return w;
}

ExpertWeights Expert(WeightFormat format, const uint8_t*& next) {
  ExpertWeights e;
  e.w1 = View(format, kInter, kHidden, next);
  e.w3 = View(format, kInter, kHidden, next);
  e.w2 = View(format, kHidden, kInter, next);
  return e;
}

void BM_Experts(benchmark::State& state) {
  static const double read_limit = MeasureReadBandwidth(Pool()), fma_limit = MeasureFmaPeak(Pool());
  const int64_t rows = state.range(0);
  Buffer<uint8_t> bytes(size_t{700} << 20);
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<uint8_t>(i * 2654435761u >> 13) % 63 + 64;  // no NaN code
  const uint8_t* next = bytes.data();
  std::vector<ExpertWeights> experts;
  for (int64_t e = 0; e < kExperts; ++e) experts.push_back(Expert(WeightFormat::kFp4, next));
  Buffer<float> x(rows * kHidden), y(rows * kHidden);
  Buffer<float> scratch(ExpertsScratchFloats(rows, kTopk, kHidden, kInter, kInter));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 13) * 0x1p-4f;
  const std::vector<float> weights(static_cast<size_t>(rows * kTopk), 0.25f);
  std::vector<int32_t> begin(kExperts + 1), pairs(static_cast<size_t>(rows * kTopk));
  ExpertsParams p;
  p.shared = Expert(WeightFormat::kFp8, next);
  p.rows = rows;
  p.hidden = kHidden;
  p.inter = p.shared_inter = kInter;
  p.num_experts = kExperts;
  p.topk = kTopk;
  p.x = x.data();
  p.experts = experts.data();
  p.route_weights = weights.data();
  p.dispatch = {begin.data(), pairs.data()};
  p.swiglu_limit = 10.0f;
  p.round_bf16 = p.round_activations = true;
  p.scratch = scratch.data();
  p.y = y.data();
  int64_t step = 0, used = 0;
  double read = 0;
  for (auto _ : state) {
    // Slot k of row r picks expert (step + r + 5 k) mod 32: other experts in every step.
    int32_t at = 0;
    used = 0;
    for (int64_t e = 0; e < kExperts; ++e) {
      begin[e] = at;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t k = 0; k < kTopk; ++k) {
          if ((step + r + 5 * k) % kExperts == e) pairs[at++] = static_cast<int32_t>(r * kTopk + k);
        }
      }
      used += at > begin[e];
    }
    begin[kExperts] = at;
    step += 7;
    ExpertsCpu(p, Pool());
    read += static_cast<double>(used * 3 * experts[0].w1.bytes() + 3 * p.shared.w1.bytes());
  }
  const double flops = 6.0 * kHidden * kInter * static_cast<double>(rows * (kTopk + 1));
  const auto rate = benchmark::Counter::kIsRate;
  state.counters["GB/s"] = benchmark::Counter(read * 1e-9, rate);
  state.counters["of_read"] = benchmark::Counter(read / read_limit, rate);
  state.counters["of_fma"] = benchmark::Counter(flops / fma_limit, benchmark::Counter::kIsIterationInvariantRate);
  state.SetLabel("limits " + std::to_string(read_limit * 1e-9) + " GB/s, " + std::to_string(fma_limit * 1e-9) +
                 " GFLOP/s");
}
BENCHMARK(BM_Experts)->ArgName("rows")->UseRealTime()->Arg(1)->Arg(4)->Arg(32)->Arg(256)->Arg(2048);

}  // namespace
}  // namespace senko::ops
