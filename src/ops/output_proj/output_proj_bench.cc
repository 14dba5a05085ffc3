// The grouped output projection at the released dimensions. `senko bench ops` runs it with weights from memory and
// beside the machine's limits; here one weight stays where the cache can hold it.
#include <vector>

#include "base/thread_pool.h"
#include "benchmark/benchmark.h"
#include "ops/output_proj/output_proj.h"

namespace senko::ops {
namespace {

constexpr int64_t kGroups = 8, kRank = 1024, kSlice = 4096, kHidden = 5120;

void Project(benchmark::State& state) {
  const int64_t rows = state.range(0);
  const std::vector<uint8_t> codes(static_cast<size_t>(kGroups * kRank * (kSlice + kHidden)), 0x38);
  const std::vector<uint8_t> scales(codes.size() / 1024, 118);
  const std::vector<float> o(static_cast<size_t>(rows * kGroups * kSlice), 0.5f);
  std::vector<float> u(static_cast<size_t>(rows * kGroups * kRank)), y(static_cast<size_t>(rows * kHidden));
  const WeightView wo_a{WeightFormat::kFp8, kGroups * kRank, kSlice, codes.data(), scales.data()};
  const WeightView wo_b{WeightFormat::kFp8, kHidden, kGroups * kRank, codes.data() + wo_a.out * wo_a.in,
                        scales.data() + wo_a.out * wo_a.in / 1024};
  ThreadPool pool;
  for (auto _ : state) {
    OutputProjCpu({rows, kGroups, o.data(), wo_a, wo_b, u.data(), y.data(), true, true}, pool);
    benchmark::DoNotOptimize(y.data());
  }
  state.SetBytesProcessed(state.iterations() * (wo_a.bytes() + wo_b.bytes()));
  const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(wo_a.out * wo_a.in + wo_b.out * wo_b.in);
  state.counters["FLOP/s"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(Project)->Arg(1)->Arg(8)->Arg(128)->UseRealTime();

}  // namespace
}  // namespace senko::ops
