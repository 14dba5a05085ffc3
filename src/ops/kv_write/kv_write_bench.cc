// KV writes of a prefill chunk at the released model's shapes; bytes are floats read and packed bytes
// written.
#include <benchmark/benchmark.h>

#include <vector>

#include "numerics/packed_rows.h"
#include "ops/kv_write/kv_write.h"

namespace senko::ops {
namespace {

constexpr int64_t kDim = 512, kRope = 64;

std::vector<float> Wave(int64_t count) {
  std::vector<float> x(static_cast<size_t>(count));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 2654435761u % 1000) / 500.0f - 1.0f;
  return x;
}

void BM_WindowWrite(benchmark::State& state) {
  const int64_t rows = state.range(0), stride = numerics::WindowRowStride(kDim);
  const auto x = Wave(rows * kDim), weight = Wave(kDim), rope = Wave(rows * kRope);
  std::vector<uint8_t> staging(static_cast<size_t>(rows * stride));
  ThreadPool pool;
  for (auto _ : state) {
    WindowWriteCpu({rows, kDim, kRope, x.data(), weight.data(), 1e-20f, rope.data(), true, stride, staging.data()},
                   pool);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * rows * (kDim * 4 + stride));
}
BENCHMARK(BM_WindowWrite)->Arg(1)->Arg(2048)->UseRealTime();

void BM_EntryWrite(benchmark::State& state) {
  const int64_t rows = state.range(0), stride = numerics::EntryStride(kDim);
  const auto x = Wave(rows * kDim), rope = Wave(rows * kRope);
  std::vector<uint8_t> slab(static_cast<size_t>(rows * stride));
  const int32_t page = 0;
  SequenceKv sequence;
  sequence.pages = &page;
  EntryView view;
  view.slab = slab.data();
  view.entries_per_page = rows;
  view.entry_stride = stride;
  std::vector<LatentRef> latents;
  for (int64_t i = 0; i < rows; ++i) latents.push_back({0, i, i, -1});
  ThreadPool pool;
  for (auto _ : state) {
    EntryWriteCpu({rows, latents.data(), kDim, kRope, x.data(), rope.data(), true, &sequence, view}, pool);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * rows * (kDim * 4 + stride));
}
BENCHMARK(BM_EntryWrite)->Arg(1)->Arg(2048)->UseRealTime();

void BM_Compress(benchmark::State& state) {
  const int64_t count = state.range(0);
  const auto c = Wave(2 * count * kDim), z = Wave(2 * count * kDim), weight = Wave(kDim);
  std::vector<float> out(static_cast<size_t>(count * kDim));
  std::vector<LatentRef> latents;
  for (int64_t i = 0; i < count; ++i) latents.push_back({0, i, 2 * i + 1, 2 * i});
  CompressParams p;
  p.count = count;
  p.latents = latents.data();
  p.ratio = 2;
  p.dim = kDim;
  p.c = c.data();
  p.z = z.data();
  p.norm_weight = weight.data();
  p.rms_eps = 1e-20f;
  p.round_bf16 = true;
  p.out = out.data();
  ThreadPool pool;
  for (auto _ : state) {
    CompressCpu(p, pool);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * count * kDim * 5 * 4);
}
BENCHMARK(BM_Compress)->Arg(1)->Arg(1024)->UseRealTime();

}  // namespace
}  // namespace senko::ops
