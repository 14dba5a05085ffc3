// Attention at the released model's shape (64 heads x 512, window 128 + 512 entries) and a small one.
// Arithmetic: 4 * heads * dim * keys per row, q . k and weights . values. `decode` is one row over all
// threads.
#include <benchmark/benchmark.h>

#include <vector>

#include "numerics/packed_rows.h"
#include "numerics/row_quantise.h"
#include "ops/attention/attention.h"
#include "tensor/machine_limits.h"

namespace senko::ops {
namespace {

std::vector<float> Wave(int64_t count) {
  std::vector<float> x(static_cast<size_t>(count));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * 2654435761u >> 7) % 1000) / 500.0f - 1.0f;
  return x;
}

struct Args {
  int64_t rows, heads, dim, rope_dim, window, entries;
};

void Run(benchmark::State& state, const Args& a, int threads) {
  const int64_t context = 4 * a.entries;  // every fourth entry is selected: rows of 288 bytes far apart
  const int64_t row_stride = numerics::WindowRowStride(a.dim), entry_stride = numerics::EntryStride(a.dim);
  std::vector<uint8_t> staging(static_cast<size_t>((a.window + a.rows) * row_stride));
  std::vector<uint8_t> slab(static_cast<size_t>(context * entry_stride));
  const auto latent = Wave(a.dim + 977);
  for (int64_t r = 0; r < a.window + a.rows; ++r) {
    uint8_t* row = staging.data() + r * row_stride;
    numerics::QuantiseFp8Row(latent.data() + r % 977, a.dim, row, row + a.dim);
  }
  for (int64_t e = 0; e < context; ++e) {
    uint8_t* row = slab.data() + e * entry_stride;
    numerics::QuantiseFp4Block16Row(latent.data() + e * 7 % 977, a.dim, row, row + a.dim / 2);
  }
  std::vector<int64_t> positions, window_begin;
  std::vector<int32_t> sequences, selected, counts;
  for (int64_t r = 0; r < a.rows; ++r) {
    positions.push_back(100000 + r);
    window_begin.push_back(100000 + r - a.window + 1);
    sequences.push_back(0);
    counts.push_back(static_cast<int32_t>(a.entries));
    for (int64_t e = 0; e < a.entries; ++e) selected.push_back(static_cast<int32_t>(4 * e + r % 4));
  }
  const int32_t page = 0;
  SequenceKv kv;
  kv.pages = &page;
  kv.first_new = 100000 - a.window;
  const auto q = Wave(a.rows * a.heads * a.dim), rope = Wave(a.rows * a.rope_dim), sink = Wave(a.heads);
  std::vector<float> out(q.size());
  AttentionParams p;
  p.rows = {a.rows, positions.data(), sequences.data(), window_begin.data(), &kv, 1};
  p.heads = a.heads;
  p.dim = a.dim;
  p.rope_dim = a.rope_dim;
  p.q = q.data();
  p.rope = rope.data();
  p.sink = sink.data();
  p.scale = 0.044f;
  p.round_bf16 = true;
  p.window = {0, a.window, row_stride, staging.data()};
  p.selected = selected.data();
  p.selected_count = counts.data();
  p.selected_stride = a.entries;
  p.entries.slab = slab.data();
  p.entries.entries_per_page = context;
  p.entries.entry_stride = entry_stride;
  p.out = out.data();
  ThreadPool pool(threads);
  for (auto _ : state) {
    AttentionCpu(p, pool);
    benchmark::ClobberMemory();
  }
  const double keys = static_cast<double>(a.window + a.entries);
  const double flops = 4.0 * static_cast<double>(a.rows * a.heads * a.dim) * keys;
  state.counters["GFLOP/s"] = benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["fraction_of_fma_peak"] =
      benchmark::Counter(flops / MeasureFmaPeak(pool), benchmark::Counter::kIsIterationInvariantRate);
  const double bytes = static_cast<double>(a.rows) * (static_cast<double>(a.window * numerics::WindowRowBytes(a.dim)) +
                                                      static_cast<double>(a.entries * numerics::EntryBytes(a.dim)));
  state.counters["KV_bytes"] = bytes;
}

void BM_Decode(benchmark::State& state) { Run(state, {1, 64, 512, 64, 128, 512}, static_cast<int>(state.range(0))); }
void BM_Prefill(benchmark::State& state) { Run(state, {256, 64, 512, 64, 128, 512}, static_cast<int>(state.range(0))); }
void BM_SmallPrefill(benchmark::State& state) {
  Run(state, {256, 8, 64, 16, 128, 512}, static_cast<int>(state.range(0)));
}
// The argument is the number of threads, 0 for all; with one thread the rates are of CPU time.
BENCHMARK(BM_Decode)->Arg(0)->UseRealTime();
BENCHMARK(BM_Decode)->Arg(1);
BENCHMARK(BM_Prefill)->Arg(0)->UseRealTime();
BENCHMARK(BM_Prefill)->Arg(1);
BENCHMARK(BM_SmallPrefill)->Arg(1);

}  // namespace
}  // namespace senko::ops
