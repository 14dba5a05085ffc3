// Linears on the released shapes: decode (few rows, weights from memory) and prefill (many rows, FMA-bound).
// Counters: bytes and flops per second, and their fraction of what this machine measured at the start of the run.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "ops/linear/linear.h"
#include "tensor/buffer.h"
#include "tensor/machine_limits.h"

namespace senko::ops {
namespace {

ThreadPool& Pool() {
  static ThreadPool pool;
  return pool;
}

double ReadLimit() {
  static const double limit = MeasureReadBandwidth(Pool());
  return limit;
}

double FmaLimit() {
  static const double limit = MeasureFmaPeak(Pool());
  return limit;
}

// Weights whose codes are neither NaN nor subnormal in any format, large enough that a decode step finds none of them
// in a cache.
constexpr size_t kBytes = size_t{1} << 30;
const Buffer<uint8_t>& Bytes() {
  static const Buffer<uint8_t> bytes = [] {
    Buffer<uint8_t> b(kBytes);
    Pool().ParallelFor(kBytes >> 20, 1, [&](int64_t begin, int64_t end, int) {
      std::minstd_rand random(static_cast<uint32_t>(begin + 1));
      for (int64_t i = begin << 20; i < end << 20; ++i) b[i] = static_cast<uint8_t>(random() >> 8) % 64 + 24;
    });
    return b;
  }();
  return bytes;
}

void BM_Linear(benchmark::State& state, WeightFormat format) {
  const int64_t rows = state.range(0), out = state.range(1), in = state.range(2);
  const double read_limit = ReadLimit(), fma_limit = FmaLimit();
  LinearParams p;
  p.rows = rows;
  p.x_stride = in;
  p.y_stride = out;
  p.weight.format = format;
  p.weight.out = out;
  p.weight.in = in;
  p.round_bf16 = true;
  Buffer<float> x(rows * in), y(rows * out);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 13) - 6.0f;
  p.x = x.data();
  p.y = y.data();
  const Buffer<uint8_t>& bytes = Bytes();
  const std::vector<uint8_t> scales(static_cast<size_t>(p.weight.bytes() - out * p.weight.row_bytes() + 64), 120);
  p.weight.scale = scales.data();
  const size_t copies = bytes.size() / static_cast<size_t>(out * p.weight.row_bytes());
  size_t copy = 0;
  double best = 1e30;
  for (auto _ : state) {
    p.weight.data = bytes.data() + copy * static_cast<size_t>(out * p.weight.row_bytes());
    copy = (copy + 1) % copies;
    const auto start = std::chrono::steady_clock::now();
    LinearCpu(p, Pool());
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  const double read = static_cast<double>(p.weight.bytes()), flops = 2.0 * static_cast<double>(rows * out * in);
  const auto per_second = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["GB/s"] = benchmark::Counter(read * 1e-9, per_second);
  state.counters["GFLOP/s"] = benchmark::Counter(flops * 1e-9, per_second);
  state.counters["of_read"] = benchmark::Counter(read / read_limit, per_second);
  state.counters["of_fma"] = benchmark::Counter(flops / fma_limit, per_second);
  state.counters["best_of_read"] = read / read_limit / best;
  state.counters["best_of_fma"] = flops / fma_limit / best;
  state.SetLabel("limits " + std::to_string(read_limit * 1e-9) + " GB/s, " + std::to_string(fma_limit * 1e-9) +
                 " GFLOP/s");
}

void Shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"rows", "out", "in"})->UseRealTime();
  for (int rows : {1, 4, 8, 16, 32, 128, 512}) b->Args({rows, 2304, 5120});
  b->Args({2048, 1280, 5120});
}
BENCHMARK_CAPTURE(BM_Linear, fp4, WeightFormat::kFp4)->Apply(Shapes);
BENCHMARK_CAPTURE(BM_Linear, fp8, WeightFormat::kFp8)->Apply(Shapes);
BENCHMARK_CAPTURE(BM_Linear, bf16, WeightFormat::kBf16)->Apply(Shapes);

}  // namespace
}  // namespace senko::ops
