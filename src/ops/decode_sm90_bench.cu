// Time of what a decode layer has besides attention and experts, in a graph of layers whose weights are cold: seam,
// latents and their norms, wq_b, output projection, seam, router. With the coefficients on a stream of their own, as
// the runtime has them, in the same stream, or left out.
#include <cuda_runtime.h>

#include <array>
#include <cstdio>
#include <functional>
#include <vector>

#include "cuda/bench_device.cuh"
#include "cuda/device_buffer.h"
#include "ops/kv_write/kv_write_sm90.h"
#include "ops/mhc/mhc_sm90.h"
#include "ops/output_proj/output_proj_sm90.h"
#include "ops/router/router_sm90.h"

namespace senko::ops {
namespace {

using cuda::DeviceBuffer;
using cuda::FillRandom;

constexpr int64_t kHidden = 5120, kQueryRank = 1280, kDim = 512, kRopeDim = 64, kHeads = 64, kGroups = 8,
                  kOutputRank = 1024, kExperts = 64, kTopk = 6, kRowStride = 544;
constexpr int kLayers = 6;  // of different weights, 130 MB each

template <typename T>
DeviceBuffer<T> Random(int64_t count, uint32_t mask, uint32_t set) {
  DeviceBuffer<T> b(static_cast<size_t>(count));
  FillRandom<<<1024, 256>>>(reinterpret_cast<uint32_t*>(b.data()), b.bytes() / 4, mask, set);
  return b;
}
DeviceBuffer<__nv_bfloat16> RandomRows(int64_t count) { return Random<__nv_bfloat16>(count, 0x80FF80FFu, 0x3D003D00u); }
DeviceBuffer<float> RandomFloats(int64_t count) { return Random<float>(count, 0x007FFFFFu, 0x3D800000u); }

// kLayers weights of a shape.
struct Weights {
  WeightFormat format;
  int64_t out, in;
  DeviceBuffer<uint8_t> tiles, scales;

  Weights(WeightFormat f, int64_t o, int64_t i)
      : format(f),
        out(o),
        in(i),
        tiles(Random<uint8_t>(static_cast<int64_t>(TileBytes(f, o, i)) * kLayers,
                              f == WeightFormat::kFp8 ? 0xBFBFBFBFu : 0x80FF80FFu,
                              f == WeightFormat::kFp8 ? 0u : 0x3C003C00u)),
        scales(static_cast<int64_t>(TileScaleBytes(f, o, i)) * kLayers + 256) {
    SENKO_CUDA(cudaMemset(scales.data(), 115, scales.bytes()));
  }
  TiledWeight Of(int layer) const {
    const auto l = static_cast<size_t>(layer % kLayers);
    return {format, out, in, tiles.data() + l * TileBytes(format, out, in),
            scales.data() + l * TileScaleBytes(format, out, in)};
  }
};

struct Model {
  Weights latents{WeightFormat::kFp8, kQueryRank + kDim, kHidden}, wq_b{WeightFormat::kFp8, kHeads*kDim, kQueryRank},
      wo_a{WeightFormat::kFp8, kGroups*kOutputRank, kHeads*kDim / kGroups},
      wo_b{WeightFormat::kFp8, kHidden, kGroups*kOutputRank}, gate{WeightFormat::kBf16, kExperts, kHidden},
      fn{WeightFormat::kBf16, 3 * kMhcOutputs, kMhcStreams*kHidden};
};

enum class Mix { kAside, kInline, kNone };

struct Rows {
  const Model& m;
  int64_t rows;
  cudaStream_t stream = nullptr, side = nullptr;
  cudaEvent_t seam_done = nullptr, mix_done = nullptr;
  DeviceBuffer<int32_t> count;
  DeviceBuffer<__nv_bfloat16> y, streams, x, xq, latent, qrq, q, u;
  DeviceBuffer<float> post, comb, pre, norm, rope, mix_scratch, scores, route_weights, bias, base;
  DeviceBuffer<uint8_t> staging;
  DeviceBuffer<int32_t> ids, pairs, counts, num_items;
  DeviceBuffer<ExpertItem> items;

  Rows(const Model& model, int64_t n)
      : m(model),
        rows(n),
        count(cuda::ToDevice(std::vector<int32_t>{static_cast<int32_t>(n)})),
        y(RandomRows(n * kHidden)),
        streams(RandomRows(n * kHidden * kMhcStreams)),
        x(RandomRows(n * kHidden)),
        xq(RandomRows(n * kHidden)),
        latent(RandomRows(n * (kQueryRank + kDim))),
        qrq(RandomRows(n * kQueryRank)),
        q(RandomRows(n * kHeads * kDim)),
        u(RandomRows(n * kGroups * kOutputRank)),
        post(RandomFloats(n * 4)),
        comb(RandomFloats(n * 16)),
        pre(RandomFloats(n * 4)),
        norm(RandomFloats(kHidden)),
        rope(RandomFloats(n * kRopeDim)),
        mix_scratch(MhcMixScratchFloats(kHidden, n)),
        scores(RouterScratchFloats(kExperts, kHidden, n)),
        route_weights(static_cast<size_t>(n * kTopk)),
        bias(RandomFloats(kExperts)),
        base(RandomFloats(32)),
        staging(static_cast<size_t>(n * kRowStride)),
        ids(static_cast<size_t>(n * kTopk)),
        pairs(static_cast<size_t>(n * kTopk)),
        counts(kExperts),
        num_items(1),
        items(static_cast<size_t>(MaxExpertItems(n, kTopk, kExperts, 8))) {
    SENKO_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    SENKO_CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    SENKO_CUDA(cudaEventCreateWithFlags(&seam_done, cudaEventDisableTiming));
    SENKO_CUDA(cudaEventCreateWithFlags(&mix_done, cudaEventDisableTiming));
    SENKO_CUDA(cudaDeviceSynchronize());
  }
  ~Rows() {
    cudaStreamDestroy(stream);
    cudaStreamDestroy(side);
    cudaEventDestroy(seam_done);
    cudaEventDestroy(mix_done);
  }

  void Seam() const {
    MhcSeamSm90Params p;
    p.rows = count.data();
    p.max_rows = rows;
    p.hidden = kHidden;
    p.y = y.data();
    p.post = post.data();
    p.comb = comb.data();
    p.streams = streams.data();
    p.pre = pre.data();
    p.norm_weight = norm.data();
    p.rms_eps = 1e-6f;
    p.x = x.data();
    p.xq = xq.data();
    MhcSeamSm90(p, stream);
  }
  void Coefficients(int layer, Mix mix) const {
    if (mix == Mix::kNone) return;
    MhcMixSm90Params p;
    p.rows = count.data();
    p.max_rows = rows;
    p.hidden = kHidden;
    p.streams = streams.data();
    p.fn = m.fn.Of(layer);
    p.base = p.scale = base.data();
    p.rms_eps = p.hc_eps = 1e-6f;
    p.sinkhorn_iters = 20;
    p.scratch = mix_scratch.data();
    p.pre = pre.data();
    p.post = post.data();
    p.comb = comb.data();
    if (mix == Mix::kInline) return MhcMixSm90(p, stream);
    SENKO_CUDA(cudaEventRecord(seam_done, stream));
    SENKO_CUDA(cudaStreamWaitEvent(side, seam_done, 0));
    MhcMixSm90(p, side);
    SENKO_CUDA(cudaEventRecord(mix_done, side));
  }
  void Join(Mix mix) const {
    if (mix == Mix::kAside) SENKO_CUDA(cudaStreamWaitEvent(stream, mix_done, 0));
  }
  void Linear(const __nv_bfloat16* from, const TiledWeight& w, __nv_bfloat16* to) const {
    LinearSm90Params p;
    p.rows = count.data();
    p.max_rows = rows;
    p.x = from;
    p.x_stride = w.in;
    p.weight = w;
    p.y_bf16 = to;
    p.y_stride = w.out;
    LinearSm90(p, stream);
  }
  void Norms() const {
    LatentNormsSm90Params p;
    p.rows = count.data();
    p.max_rows = rows;
    p.latents = latent.data();
    p.q_dim = kQueryRank;
    p.q_weight = p.kv_weight = norm.data();
    p.q = qrq.data();
    p.dim = kDim;
    p.rope_dim = kRopeDim;
    p.rms_eps = 1e-6f;
    p.rope = rope.data();
    p.row_stride = kRowStride;
    p.staging = staging.data();
    LatentNormsSm90(p, stream);
  }
  void OutputProj(int layer) const {
    OutputProjSm90Params p;
    p.rows = count.data();
    p.max_rows = rows;
    p.groups = kGroups;
    p.o = q.data();
    p.wo_a = m.wo_a.Of(layer);
    p.wo_b = m.wo_b.Of(layer);
    p.u = u.data();
    p.y = y.data();
    OutputProjSm90(p, stream);
  }
  void Router(int layer) const {
    RouterSm90Params r;
    r.rows = count.data();
    r.max_rows = rows;
    r.num_experts = kExperts;
    r.topk = kTopk;
    r.x = x.data();
    r.gate = m.gate.Of(layer);
    r.bias = r.bias_vl = bias.data();
    r.scores = scores.data();
    r.ids = ids.data();
    r.weights = route_weights.data();
    RouteSm90(
        r, {count.data(), kExperts, kTopk, 8, ids.data(), counts.data(), pairs.data(), items.data(), num_items.data()},
        stream);
  }
  void Layer(int layer, Mix mix) const {
    Seam();
    Coefficients(2 * layer, mix);
    Linear(xq.data(), m.latents.Of(layer), latent.data());
    Norms();
    Linear(qrq.data(), m.wq_b.Of(layer), q.data());
    OutputProj(layer);
    Join(mix);
    Seam();
    Coefficients(2 * layer + 1, mix);
    Router(layer);
    Join(mix);
  }
};

void Bench(const Model& model, int64_t rows) {
  const Rows r(model, rows);
  struct Part {
    const char* name;
    std::function<void(int)> call;
  };
  const std::array<Part, 10> parts{{
      {"layer", [&](int i) { r.Layer(i, Mix::kAside); }},
      {"layer, coefficients in line", [&](int i) { r.Layer(i, Mix::kInline); }},
      {"layer, no coefficients", [&](int i) { r.Layer(i, Mix::kNone); }},
      {"seam", [&](int) { r.Seam(); }},
      {"latents", [&](int i) { r.Linear(r.xq.data(), model.latents.Of(i), r.latent.data()); }},
      {"latents, norms",
       [&](int i) {
         r.Linear(r.xq.data(), model.latents.Of(i), r.latent.data());
         r.Norms();
       }},
      {"latents, norms, wq_b",
       [&](int i) {
         r.Linear(r.xq.data(), model.latents.Of(i), r.latent.data());
         r.Norms();
         r.Linear(r.qrq.data(), model.wq_b.Of(i), r.q.data());
       }},
      {"wq_b", [&](int i) { r.Linear(r.qrq.data(), model.wq_b.Of(i), r.q.data()); }},
      {"output projection", [&](int i) { r.OutputProj(i); }},
      {"router", [&](int i) { r.Router(i); }},
  }};
  for (const Part& part : parts) {
    const double t = cuda::SecondsPerCall(r.stream, 5e-5, part.call);
    std::printf("%5lld rows  %-28s %8.2f us\n", static_cast<long long>(rows), part.name, t * 1e6);
  }
}

void All() {
  const Model model;
  for (const int64_t rows : {1, 8, 64}) Bench(model, rows);
}

}  // namespace
}  // namespace senko::ops

int main() { return senko::cuda::MainOnDevice(senko::ops::All); }
