// Operators that read weights, and those between sublayers.
#include "bench/gpu_op_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "bench/gpu_data.h"
#include "ops/experts/experts_sm90.h"
#include "ops/mhc/mhc_sm90.h"
#include "ops/output_proj/output_proj_sm90.h"
#include "ops/router/router_sm90.h"

namespace senko::bench {
namespace {

using ops::WeightFormat;

constexpr int64_t kHidden = 5120, kInter = 2304, kTopk = 6, kStreams = ops::kMhcStreams * kHidden;

double Bytes(WeightFormat format, int64_t out, int64_t in) {
  return static_cast<double>(ops::TileBytes(format, out, in) + ops::TileScaleBytes(format, out, in));
}
double Flops(int64_t rows, int64_t out, int64_t in) { return 2.0 * static_cast<double>(rows * out * in); }

GpuOpCase Linear(const char* name, WeightFormat format, int64_t out, int64_t in, int64_t rows) {
  GpuOpCase op;
  op.name = fmt::format("linear {} {}x{} rows={}", name, out, in, rows);
  op.bytes = Bytes(format, out, in) + 2.0 * static_cast<double>(rows * (in + out));
  op.flops = Flops(rows, out, in);
  op.products = {{rows, out, in}};
  op.prepare = [=]() -> GpuWorks {
    auto data = std::make_shared<GpuData>();
    ops::LinearSm90Params p;
    p.rows = data->Number(rows);
    p.max_rows = rows;
    p.x = data->Rows(rows * in);
    p.x_stride = in;
    p.weight = data->Weight(format, out, in);
    p.y_bf16 = data->Zeros<__nv_bfloat16>(rows * out);
    p.y_stride = out;
    return {[data, p](cudaStream_t stream) { ops::LinearSm90(p, stream); }, nullptr};
  };
  return op;
}

GpuOpCase OutputProj(int64_t rows) {
  constexpr int64_t kGroups = 8, kRank = 1024, kSlice = 4096;
  GpuOpCase op;
  op.name = fmt::format("output_proj 8x1024x4096, 5120x8192 rows={}", rows);
  op.bytes = Bytes(WeightFormat::kFp8, kGroups * kRank, kSlice) + Bytes(WeightFormat::kFp8, kHidden, kGroups * kRank) +
             2.0 * static_cast<double>(rows * (kGroups * kSlice + kHidden));
  op.flops = Flops(rows, kGroups * kRank, kSlice) + Flops(rows, kHidden, kGroups * kRank);
  op.products.assign(kGroups, {rows, kRank, kSlice});
  op.products.push_back({rows, kHidden, kGroups * kRank});
  op.prepare = [=]() -> GpuWorks {
    auto data = std::make_shared<GpuData>();
    ops::OutputProjSm90Params p;
    p.rows = data->Number(rows);
    p.max_rows = rows;
    p.groups = kGroups;
    p.o = data->Rows(rows * kGroups * kSlice);
    p.wo_a = data->Weight(WeightFormat::kFp8, kGroups * kRank, kSlice);
    p.wo_b = data->Weight(WeightFormat::kFp8, kHidden, kGroups * kRank);
    p.u = data->Zeros<__nv_bfloat16>(rows * kGroups * kRank);
    p.y = data->Zeros<__nv_bfloat16>(rows * kHidden);
    return {[data, p](cudaStream_t stream) { ops::OutputProjSm90(p, stream); }, nullptr};
  };
  return op;
}

// Distinct experts of each row, evenly drawn.
std::vector<int32_t> Routes(int64_t experts, int64_t rows, int64_t* distinct) {
  std::mt19937 random(1);
  std::vector<int32_t> ids, order(static_cast<size_t>(experts));
  for (size_t e = 0; e < order.size(); ++e) order[e] = static_cast<int32_t>(e);
  std::vector<bool> seen(order.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (size_t k = 0; k < static_cast<size_t>(kTopk); ++k) {
      std::swap(order[k], order[k + random() % (order.size() - k)]);
      ids.push_back(order[k]);
      seen[static_cast<size_t>(order[k])] = true;
    }
  }
  *distinct = std::count(seen.begin(), seen.end(), true);
  return ids;
}

ops::ExpertTiles Tiles(GpuData& data, WeightFormat format, int64_t experts) {
  const auto n = static_cast<size_t>(experts);
  return {format,
          kInter,
          kHidden,
          data.Codes(format, n * ops::TileBytes(format, 2 * kInter, kHidden)),
          data.Scales(n * ops::TileScaleBytes(format, 2 * kInter, kHidden)),
          data.Codes(format, n * ops::TileBytes(format, kHidden, kInter)),
          data.Scales(n * ops::TileScaleBytes(format, kHidden, kInter))};
}

// Dispatch is `router`'s; the lists are made once.
GpuOpCase Experts(int64_t experts, int64_t rows) {
  int64_t distinct = 0;
  const std::vector<int32_t> ids = Routes(experts, rows, &distinct);
  const auto one = [](WeightFormat f) { return Bytes(f, 2 * kInter, kHidden) + Bytes(f, kHidden, kInter); };
  GpuOpCase op;
  op.name = fmt::format("experts 6 of {} + shared, {} of them read, rows={}", experts, distinct, rows);
  op.bytes = static_cast<double>(distinct) * one(WeightFormat::kFp4) + one(WeightFormat::kFp8) +
             2.0 * static_cast<double>(rows * (kTopk + 2) * kHidden);
  op.flops = Flops(rows * (kTopk + 1), 3 * kInter, kHidden);
  if (rows > 64) op.products = {{rows * (kTopk + 1), 2 * kInter, kHidden}, {rows * (kTopk + 1), kHidden, kInter}};
  op.prepare = [=]() -> GpuWorks {
    auto data = std::make_shared<GpuData>();
    ops::ExpertsSm90Params p;
    p.block = ops::ExpertBlock(rows, kTopk, experts);
    p.topk = kTopk;
    p.max_items = ops::MaxExpertItems(rows, kTopk, experts, p.block);
    p.rows = data->Number(rows);
    p.max_rows = rows;
    auto* items = data->Zeros<ops::ExpertItem>(p.max_items);
    auto *pairs = data->Zeros<int32_t>(rows * kTopk), *num_items = data->Zeros<int32_t>(1);
    ops::DispatchSm90(
        {p.rows, experts, kTopk, p.block, data->Upload(ids), data->Zeros<int32_t>(experts), pairs, items, num_items},
        nullptr);
    p.items = items;
    p.pairs = pairs;
    p.num_items = num_items;
    p.weights = Tiles(*data, WeightFormat::kFp4, experts);
    p.shared = Tiles(*data, WeightFormat::kFp8, 1);
    p.x = data->Rows(rows * kHidden);
    p.swiglu_limit = 10;
    p.h = data->Zeros<__nv_bfloat16>(rows * kTopk * kInter);
    p.shared_h = data->Zeros<__nv_bfloat16>(rows * kInter);
    p.y = data->Zeros<__nv_bfloat16>(rows * (kTopk + 1) * kHidden);
    p.y_row_slots = kTopk + 1;
    p.scratch = data->Zeros<uint8_t>(static_cast<int64_t>(ops::ExpertsScratchBytes(kHidden, kInter, kInter)));
    return {[data, p](cudaStream_t stream) { ops::ExpertsSm90(p, stream); }, nullptr};
  };
  return op;
}

// Its baseline: the launches for any number of rows, scores and choice and lists one after the other.
GpuOpCase Router(int64_t rows) {
  constexpr int64_t kExperts = 384;
  GpuOpCase op;
  op.name = fmt::format("router 6 of 384 with lists rows={}", rows);
  op.bytes = Bytes(WeightFormat::kBf16, kExperts, kHidden) + 2.0 * static_cast<double>(rows * kHidden);
  op.flops = Flops(rows, kExperts, kHidden);
  if (rows <= ops::kFewRoutedRows) op.baseline = "a launch a part";
  op.prepare = [=]() -> GpuWorks {
    auto data = std::make_shared<GpuData>();
    ops::RouterSm90Params r;
    r.rows = data->Number(rows);
    r.max_rows = rows;
    r.num_experts = kExperts;
    r.topk = kTopk;
    r.x = data->Rows(rows * kHidden);
    r.gate = data->Weight(WeightFormat::kBf16, kExperts, kHidden);
    r.bias = r.bias_vl = data->Zeros<float>(kExperts);
    r.scaling = 1.5f;
    r.scores = data->Zeros<float>(static_cast<int64_t>(ops::RouterScratchFloats(kExperts, kHidden, rows)));
    r.ids = data->Zeros<int32_t>(rows * kTopk);
    r.weights = data->Zeros<float>(rows * kTopk);
    ops::DispatchSm90Params d;
    d.rows = r.rows;
    d.num_experts = kExperts;
    d.topk = kTopk;
    d.block = ops::ExpertBlock(rows, kTopk, kExperts);
    d.ids = r.ids;
    d.counts = data->Zeros<int32_t>(kExperts);
    d.pairs = data->Zeros<int32_t>(rows * kTopk);
    d.items = data->Zeros<ops::ExpertItem>(ops::MaxExpertItems(rows, kTopk, kExperts, d.block));
    d.num_items = data->Zeros<int32_t>(1);
    return {[data, r, d](cudaStream_t stream) { ops::RouteSm90(r, d, stream); },
            [data, r, d](cudaStream_t stream) {
              ops::RouterSm90(r, stream);
              ops::DispatchSm90(d, stream);
            }};
  };
  return op;
}

GpuOpCase Seam(int64_t slots, int64_t rows) {
  GpuOpCase op;
  op.name = fmt::format("seam {} slots rows={}", slots, rows);
  op.bytes = 2.0 * static_cast<double>(rows * (2 * kStreams + (slots + 2) * kHidden));
  op.baseline = "copy";
  op.prepare = [=]() -> GpuWorks {
    auto data = std::make_shared<GpuData>();
    ops::MhcSeamSm90Params p;
    p.rows = data->Number(rows);
    p.max_rows = rows;
    p.hidden = kHidden;
    p.y = data->Rows(rows * slots * kHidden);
    p.y_slots = slots;
    p.post = data->Floats(rows * 4);
    // Its rows add up to less than one: streams do not grow from call to call.
    p.comb = data->Random<float>(rows * 16, 0x007FFFFFu, 0x3D800000u);
    p.streams = data->Rows(rows * kStreams);
    p.pre = data->Floats(rows * 4);
    p.norm_weight = data->Floats(kHidden);
    p.rms_eps = 1e-6f;
    p.x = data->Zeros<__nv_bfloat16>(rows * kHidden);
    p.xq = data->Zeros<__nv_bfloat16>(rows * kHidden);
    return {[data, p](cudaStream_t stream) { ops::MhcSeamSm90(p, stream); }, CopyOf(data, op.bytes)};
  };
  return op;
}

GpuOpCase Mix(int64_t rows) {
  constexpr int64_t kOut = 3 * ops::kMhcOutputs;
  GpuOpCase op;
  op.name = fmt::format("mix 24x20480 in three bf16 parts rows={}", rows);
  op.bytes = Bytes(WeightFormat::kBf16, kOut, kStreams) + 2.0 * static_cast<double>(rows * kStreams);
  op.flops = Flops(rows, kOut, kStreams);
  op.products = {{rows, kOut, kStreams}};
  op.prepare = [=]() -> GpuWorks {
    auto data = std::make_shared<GpuData>();
    ops::MhcMixSm90Params p;
    p.rows = data->Number(rows);
    p.max_rows = rows;
    p.hidden = kHidden;
    p.streams = data->Rows(rows * kStreams);
    p.fn = data->Weight(WeightFormat::kBf16, kOut, kStreams);
    p.base = data->Floats(ops::kMhcOutputs);
    p.scale = data->Floats(4);
    p.rms_eps = p.hc_eps = 1e-6f;
    p.sinkhorn_iters = 20;
    p.scratch = data->Zeros<float>(static_cast<int64_t>(ops::MhcMixScratchFloats(kHidden, rows)));
    p.pre = data->Zeros<float>(rows * 4);
    p.post = data->Zeros<float>(rows * 4);
    p.comb = data->Zeros<float>(rows * 16);
    return {[data, p](cudaStream_t stream) { ops::MhcMixSm90(p, stream); }, nullptr};
  };
  return op;
}

}  // namespace

void AddKvCases(std::vector<GpuOpCase>& cases);     // gpu_op_cases_kv.cc
void AddOtherCases(std::vector<GpuOpCase>& cases);  // gpu_op_cases_other.cc

std::vector<GpuOpCase> GpuOpCases() {
  std::vector<GpuOpCase> cases;
  for (const int64_t rows : {1, 8, 64, 8192}) {
    cases.push_back(Linear("fp8 latents", WeightFormat::kFp8, 1792, kHidden, rows));
    cases.push_back(Linear("fp8 wq_b", WeightFormat::kFp8, 32768, 1280, rows));
    cases.push_back(Linear("fp8 index wq_b", WeightFormat::kFp8, 4096, 1280, rows));
    cases.push_back(Linear("fp8 engram wkv", WeightFormat::kFp8, 25600, 6144, rows));
    if (rows <= 64) cases.push_back(Linear("bf16 head", WeightFormat::kBf16, 129280, kHidden, rows));
    cases.push_back(OutputProj(rows));
    cases.push_back(Router(rows));
    cases.push_back(Experts(64, rows));
    cases.push_back(Experts(384, rows));
    cases.push_back(Seam(1, rows));
    cases.push_back(Seam(kTopk + 1, rows));
    cases.push_back(Mix(rows));
  }
  AddKvCases(cases);
  AddOtherCases(cases);
  return cases;
}

}  // namespace senko::bench
