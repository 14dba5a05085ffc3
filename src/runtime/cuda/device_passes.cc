#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "base/check.h"
#include "cuda/check.h"
#include "ops/kv_write/kv_write_sm90.h"
#include "ops/mhc/mhc_sm90.h"
#include "runtime/cuda/basic_device_passes.h"
#include "runtime/cuda/row_moves.h"

namespace senko::runtime {
namespace {

// Up to so many rows the branches of a layer run side by side: its kernels then leave most of the GPU idle.
constexpr int64_t kForkRows = 64;
// Blocks that read Engram rows from host memory while the first layers compute.
constexpr int32_t kEngramBlocks = 16;

// y = x W^T, or y_float as summed: by the type of x and y.
void StartLinear(const int32_t* rows, int64_t max_rows, const __nv_bfloat16* x, const ops::TiledWeight& weight,
                 __nv_bfloat16* y, float* y_float, cudaStream_t stream) {
  ops::LinearSm90Params p;
  p.rows = rows;
  p.max_rows = max_rows;
  p.x = x;
  p.x_stride = weight.in;
  p.weight = weight;
  p.y_bf16 = y;
  p.y_float = y_float;
  p.y_stride = weight.out;
  ops::LinearSm90(p, stream);
}

void StartFloatLinear(const int32_t* rows, int64_t max_rows, const float* x, const __nv_bfloat16* x_bf16,
                      const ops::TiledWeight& weight, float* y, cudaStream_t stream) {
  ops::LinearFloatSm90Params p;
  p.rows = rows;
  p.max_rows = max_rows;
  p.x = x;
  p.x_bf16 = x_bf16;
  p.x_stride = weight.in;
  p.weight = weight;
  p.y = y;
  p.y_stride = weight.out;
  ops::LinearFloatSm90(p, stream);
}
void StartLinear(const int32_t* rows, int64_t max_rows, const float* x, const ops::TiledWeight& weight, float* y,
                 float* y_float, cudaStream_t stream) {
  StartFloatLinear(rows, max_rows, x, nullptr, weight, y != nullptr ? y : y_float, stream);
}
void StartLinear(const int32_t* rows, int64_t max_rows, const __nv_bfloat16* x, const ops::TiledWeight& weight,
                 float* y, std::nullptr_t, cudaStream_t stream) {
  StartFloatLinear(rows, max_rows, nullptr, x, weight, y, stream);
}

}  // namespace

template <typename Value>
BasicDevicePasses<Value>::BasicDevicePasses(const model::Model& model, const DeviceWeights& weights,
                                            const DeviceEngram& engram, const StepBatch& batch,
                                            const BasicDeviceWorkspace<Value>& workspace, uint8_t* slab)
    : model_(model),
      config_(model.config()),
      weights_(weights),
      engram_(engram),
      batch_(batch),
      ws_(workspace),
      slab_(slab) {
  SENKO_CHECK(engram.tables().size() <= std::size(engram_done_));
  SENKO_CUDA(cudaStreamCreateWithFlags(&side_, cudaStreamNonBlocking));
  SENKO_CUDA(cudaStreamCreateWithFlags(&engram_stream_, cudaStreamNonBlocking));
  for (cudaEvent_t* event : {&seam_done_, &mix_done_, &spread_done_}) {
    SENKO_CUDA(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  }
  for (cudaEvent_t& event : engram_done_) SENKO_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
}

template <typename Value>
BasicDevicePasses<Value>::~BasicDevicePasses() {
  for (cudaEvent_t event : {seam_done_, mix_done_, spread_done_}) cudaEventDestroy(event);
  for (cudaEvent_t event : engram_done_) cudaEventDestroy(event);
  cudaStreamDestroy(side_);
  cudaStreamDestroy(engram_stream_);
}

template <typename Value>
void BasicDevicePasses<Value>::Begin(std::string_view op, int64_t layer) {
  if (observer_ != nullptr) observer_->Begin(op, layer, main_);
}

template <typename Value>
void BasicDevicePasses<Value>::Linear(const Rows& rows, const Value* x, const ops::TiledWeight& weight, Value* y,
                                      float* y_float, const int32_t* count) {
  StartLinear(count != nullptr ? count : rows.meta.count, rows.max, x, weight, y, y_float, main_);
}

// Adds what the sublayer before gave to the streams; x = the next one's input, xq = the same, rounded.
template <typename Value>
void BasicDevicePasses<Value>::Seam(const Rows& rows, Output& before, const float* norm, bool rounded) {
  ops::BasicMhcSeamSm90Params<Value> p;
  p.rows = rows.meta.count;
  p.max_rows = rows.max;
  p.num_streams = config_.hc_mult;
  p.hidden = config_.hidden_size;
  p.y = before.y;
  p.y_slots = before.slots;
  p.post = ws_.post;
  p.comb = ws_.comb;
  p.streams = rows.streams;
  p.pre = rows.pre;
  p.norm_weight = norm;
  p.rms_eps = static_cast<float>(config_.rms_norm_eps);
  p.x = ws_.x;
  p.xq = rounded ? ws_.xq : nullptr;
  ops::MhcSeamSm90(p, main_);
  before = {};
}

// The site's coefficients: needed when its sublayer has ended, so beside it where there is room.
template <typename Value>
void BasicDevicePasses<Value>::Mix(const Rows& rows, const DeviceMhcSite& site) {
  ops::BasicMhcMixSm90Params<Value> p;
  p.rows = rows.meta.count;
  p.max_rows = rows.max;
  p.num_streams = config_.hc_mult;
  p.hidden = config_.hidden_size;
  p.streams = rows.streams;
  p.fn = site.fn;
  p.base = site.base;
  p.scale = site.scale;
  p.rms_eps = static_cast<float>(config_.rms_norm_eps);
  p.hc_eps = static_cast<float>(config_.hc_eps);
  p.sinkhorn_iters = static_cast<int>(config_.hc_iters);
  p.scratch = ws_.mix_scratch;
  p.pre = rows.pre;
  p.post = ws_.post;
  p.comb = ws_.comb;
  mix_forked_ = rows.max <= kForkRows && !watched();
  if (!mix_forked_) return ops::MhcMixSm90(p, main_);
  SENKO_CUDA(cudaEventRecord(seam_done_, main_));
  SENKO_CUDA(cudaStreamWaitEvent(side_, seam_done_, 0));
  ops::MhcMixSm90(p, side_);
  SENKO_CUDA(cudaEventRecord(mix_done_, side_));
}

template <typename Value>
void BasicDevicePasses<Value>::JoinMix() {
  if (mix_forked_) SENKO_CUDA(cudaStreamWaitEvent(main_, mix_done_, 0));
  mix_forked_ = false;
}

// Token ids alone say which rows a layer reads: all are asked for when the pass begins.
template <typename Value>
void BasicDevicePasses<Value>::GatherEngram(const PassBounds& bounds, bool decoder) {
  const int64_t seam = config_.last_kv_source();
  bool forked = false;
  for (size_t i = 0; i < engram_.tables().size(); ++i) {
    const int64_t layer = config_.engram.layers[i];
    if ((layer > seam) != decoder) continue;
    const DeviceRows& rows = decoder ? batch_.decoder() : batch_.encoder();
    const int64_t max = decoder ? bounds.decoder_rows : bounds.encoder_rows;
    const bool fork = !watched();
    cudaStream_t stream = fork ? engram_stream_ : main_;
    if (fork && !forked) {
      SENKO_CUDA(cudaEventRecord(spread_done_, main_));
      SENKO_CUDA(cudaStreamWaitEvent(engram_stream_, spread_done_, 0));
      forked = true;
    }
    Begin("engram_gather", layer);
    const DeviceEngram::Table& table = engram_.tables()[i];
    ops::EngramGatherSm90Params p;
    p.rows = rows.count;
    p.max_rows = max;
    p.positions = rows.batch.positions;
    p.sequences = rows.batch.sequences;
    p.tokens = batch_.sequence_tokens();
    p.tokens_begin = batch_.sequence_tokens_begin();
    p.token_map = engram_.token_map();
    p.vocab = config_.vocab_size;
    p.image_token = config_.image_token_id >= 0 ? static_cast<int32_t>(config_.image_token_id) : -1;
    p.pad = engram_.pad();
    p.hash = table.hash;
    p.values = table.values;
    p.scales = table.scales;
    p.table_rows = table.rows;
    p.dim = config_.engram.head_dim;
    p.out = ws_.engram_in[i];
    p.max_blocks = kEngramBlocks;
    ops::EngramGatherSm90(p, stream);
    Begin("engram_wkv", layer);
    const ops::TiledWeight& wkv = weights_.layers[static_cast<size_t>(layer)].engram->wkv;
    StartLinear(rows.count, max, ws_.engram_in[i], wkv, ws_.engram_kv[i], nullptr, stream);
    if (fork) SENKO_CUDA(cudaEventRecord(engram_done_[i], stream));
  }
}

template <typename Value>
void BasicDevicePasses<Value>::Engram(const Rows& rows, const DeviceLayer& layer) {
  const auto i = static_cast<size_t>(layer.plan.engram_slot);
  if (!watched()) SENKO_CUDA(cudaStreamWaitEvent(main_, engram_done_[i], 0));
  ops::BasicEngramInjectSm90Params<Value> p;
  p.rows = rows.meta.count;
  p.max_rows = rows.max;
  p.num_streams = config_.hc_mult;
  p.hidden = config_.hidden_size;
  p.kv = ws_.engram_kv[i];
  p.q_weight = layer.engram->q_weight;
  p.k_weight = layer.engram->k_weight;
  p.rms_eps = static_cast<float>(config_.rms_norm_eps);
  p.is_image = rows.meta.is_image;
  p.streams = rows.streams;
  ops::EngramInjectSm90(p, main_);
}

// ws.x, ws.xq -> ws.slots.
template <typename Value>
void BasicDevicePasses<Value>::Moe(const Rows& rows, const DeviceLayer& layer) {
  const int64_t l = layer.plan.layer, topk = config_.experts_per_token;
  const int64_t row_slots = topk + (layer.shared.inter > 0);
  Begin("router", l);
  ops::BasicRouterSm90Params<Value> r;
  r.rows = rows.meta.count;
  r.max_rows = rows.max;
  r.num_experts = config_.num_experts;
  r.topk = topk;
  r.x = ws_.x;
  r.gate = layer.gate;
  r.bias = layer.bias;
  r.bias_vl = layer.bias_vl;
  r.is_image = rows.meta.is_image;
  r.temperature = static_cast<float>(config_.gate_temperature);
  r.scaling = static_cast<float>(config_.routed_scaling_factor);
  r.normalise = config_.norm_topk_prob;
  r.scores = ws_.scores;
  r.ids = ws_.route_ids;
  r.weights = ws_.route_weights;
  ops::DispatchSm90Params d;
  d.rows = rows.meta.count;
  d.num_experts = config_.num_experts;
  d.topk = topk;
  d.block = ops::ExpertBlock(rows.max, topk, config_.num_experts);
  d.ids = ws_.route_ids;
  d.counts = ws_.expert_counts;
  d.pairs = ws_.pairs;
  d.items = ws_.items;
  d.num_items = ws_.num_items;
  ops::RouteSm90(r, d, main_);
  if (probe_ != nullptr) {
    probe_->Routes(l, topk, config_.num_experts, ws_.route_ids, ws_.route_weights);
    ops::DispatchSm90(d, main_);  // of what it made of them
  }

  Begin("experts", l);
  ops::BasicExpertsSm90Params<Value> e;
  e.num_items = ws_.num_items;
  e.max_items = ops::MaxExpertItems(rows.max, topk, config_.num_experts, d.block);
  e.items = ws_.items;
  e.pairs = ws_.pairs;
  e.block = d.block;
  e.topk = topk;
  e.weights = layer.experts;
  e.x = ws_.xq;
  e.route_weights = ws_.route_weights;
  e.swiglu_limit = static_cast<float>(config_.swiglu_limit);
  e.h = ws_.h;
  e.y = ws_.slots;
  e.y_row_slots = row_slots;
  e.scratch = ws_.expert_scratch;
  e.shared = layer.shared;
  e.rows = rows.meta.count;
  e.max_rows = rows.max;
  e.shared_h = ws_.shared_h;
  ops::ExpertsSm90(e, main_);
}

// The streams and coefficients that a sublayer starts from; what the seam makes of them besides is thrown away.
template <typename Value>
void BasicDevicePasses<Value>::ShowStreams(const Rows& rows, int64_t layer, bool middle, const float* norm,
                                           Output& before) {
  if (probe_ == nullptr) return;
  if (before.y != nullptr) Seam(rows, before, norm, false);
  const int64_t width = config_.stream_dim();
  probe_->Floats(layer, middle ? "stream_mid" : "stream_in", width, rows.streams, width);
  probe_->Floats(layer, middle ? "pre_mid" : "pre_in", config_.hc_mult, rows.pre, config_.hc_mult);
}

template <typename Value>
void BasicDevicePasses<Value>::Layer(const Rows& rows, const DeviceLayer& layer, bool kv_written, Output& before) {
  const int64_t l = layer.plan.layer;
  if (!kv_written) ShowStreams(rows, l, false, layer.attn_norm, before);
  if (layer.engram && !kv_written) {
    Begin("engram_inject", l);
    if (before.y != nullptr) Seam(rows, before, layer.attn_norm, false);
    Engram(rows, layer);
  }
  Begin("seam", l);
  Seam(rows, before, layer.attn_norm, true);
  if (probe_ != nullptr) probe_->Input(l, "attn_in", config_.hidden_size, ws_.x, ws_.xq);
  Begin("mix", l);
  Mix(rows, layer.attn_site);
  Attention(rows, layer, kv_written);
  before = {ws_.y, 1};
  JoinMix();
  ShowStreams(rows, l, true, layer.ffn_norm, before);
  Begin("seam", l);
  Seam(rows, before, layer.ffn_norm, true);
  if (probe_ != nullptr) probe_->Input(l, "ffn_in", config_.hidden_size, ws_.x, ws_.xq);
  Begin("mix", l);
  Mix(rows, layer.ffn_site);
  Moe(rows, layer);
  before = {ws_.slots, config_.experts_per_token + (layer.shared.inter > 0)};
  if (probe_ != nullptr) probe_->Slots(l, "ffn_out", config_.hidden_size, ws_.slots, before.slots);
  JoinMix();
}

template <typename Value>
void BasicDevicePasses<Value>::ProduceKv(const Rows& rows, const DeviceLayer& layer, Output& before) {
  const int64_t l = layer.plan.layer;
  ShowStreams(rows, l, false, layer.attn_norm, before);
  Begin("seam", l);
  if (layer.engram) {
    if (before.y != nullptr) Seam(rows, before, layer.attn_norm, false);
    Engram(rows, layer);
  }
  Seam(rows, before, layer.attn_norm, true);
  if (probe_ != nullptr) probe_->Input(l, "attn_in", config_.hidden_size, ws_.x, ws_.xq);
  WriteKv(rows, layer, false);
}

template <typename Value>
void BasicDevicePasses<Value>::Commit(const Rows& rows, int64_t first_layer, int64_t num_layers) {
  if (num_layers == 0) return;
  Begin("window_commit", -1);
  const config::SlotLayout& slot = model_.slot_layout();
  ops::WindowCommitSm90Params p;
  p.num_sequences = batch_.num_sequences();
  p.max_sequences = max_sequences_;
  p.sequences = rows.meta.batch.sequence_kv;
  p.row_counts = rows.meta.row_counts;
  p.ring_offset = slot.RingOffset(first_layer);
  p.ring_stride = slot.ring_bytes;
  p.ring_rows = slot.ring_rows;
  p.row_stride = slot.row_stride;
  p.staging = Staging(first_layer);
  p.staging_stride = static_cast<int64_t>(ws_.staging_stride);
  p.num_layers = num_layers;
  ops::WindowCommitSm90(p, main_);
}

template <typename Value>
void BasicDevicePasses<Value>::Encoder(const PassBounds& bounds, cudaStream_t stream) {
  main_ = stream;
  max_sequences_ = std::min(batch_.limits().max_sequences, bounds.encoder_rows);
  const Rows rows{batch_.encoder(), bounds.encoder_rows, ws_.encoder_streams, ws_.encoder_pre};
  Begin("metadata", -1);
  // The experts' tickets: whatever a step before may have left, no step waits for a ticket that never comes.
  SENKO_CUDA(cudaMemsetAsync(ws_.expert_scratch, 0, ops::kExpertTicketBytes, main_));
  batch_.Spread(bounds.encoder_rows, main_);
  if (probe_ != nullptr) probe_->BeginPass(rows.meta, main_);
  GatherEngram(bounds, false);
  Begin("embed", -1);
  BasicEmbedParams<Value> embed;
  embed.rows = rows.meta.count;
  embed.max_rows = rows.max;
  embed.tokens = batch_.tokens();
  embed.embed = weights_.embed;
  embed.num_streams = config_.hc_mult;
  embed.hidden = config_.hidden_size;
  embed.streams = rows.streams;
  embed.pre = rows.pre;
  EmbedRows(embed, main_);
  const int64_t seam = config_.last_kv_source();
  if (seam < 0) return;
  Output before;
  for (int64_t l = 0; l < seam; ++l) Layer(rows, weights_.layers[static_cast<size_t>(l)], false, before);
  ProduceKv(rows, weights_.layers[static_cast<size_t>(seam)], before);
  Commit(rows, 0, seam);
}

template <typename Value>
void BasicDevicePasses<Value>::Decoder(const PassBounds& bounds, cudaStream_t stream) {
  main_ = stream;
  max_sequences_ = batch_.limits().max_sequences;
  const int64_t seam = config_.last_kv_source();
  const Rows written{batch_.encoder(), 0, nullptr, nullptr};
  if (bounds.decoder_rows == 0) {
    if (seam >= 0) Commit(written, seam, 1);
    return;
  }
  Value* streams = bounds.all_kept ? ws_.encoder_streams : ws_.decoder_streams;
  float* pre = bounds.all_kept ? ws_.encoder_pre : ws_.decoder_pre;
  if (probe_ != nullptr) probe_->BeginPass(batch_.decoder(), main_);
  GatherEngram(bounds, true);
  if (!bounds.all_kept) {
    Begin("kept_rows", -1);
    GatherRowsParams g;
    g.rows = batch_.decoder().count;
    g.max_rows = bounds.decoder_rows;
    g.source = batch_.source_rows();
    g.row_bytes = config_.stream_dim() * static_cast<int64_t>(sizeof(Value));
    g.from = ws_.encoder_streams;
    g.to = streams;
    g.pre_width = config_.hc_mult;
    g.pre = ws_.encoder_pre;
    g.pre_to = pre;
    GatherRows(g, main_);
  }
  Output before;
  if (seam >= 0) {
    const Rows rows{batch_.seam(), bounds.decoder_rows, streams, pre};
    Layer(rows, weights_.layers[static_cast<size_t>(seam)], true, before);
    Commit(written, seam, 1);
  }
  const Rows rows{batch_.decoder(), bounds.decoder_rows, streams, pre};
  for (int64_t l = seam + 1; l < config_.num_layers; ++l) {
    Layer(rows, weights_.layers[static_cast<size_t>(l)], false, before);
  }
  Begin("seam", -1);
  Seam(rows, before, weights_.norm, false);
  Commit(rows, seam + 1, config_.num_layers - seam - 1);
}

template <typename Value>
void BasicDevicePasses<Value>::Head(const int32_t* count, int64_t max_rows, const int32_t* source, int64_t first,
                                    cudaStream_t stream) {
  const Value* x = ws_.x + first * config_.hidden_size;
  if (source != nullptr) {
    GatherRowsParams g;
    g.rows = count;
    g.max_rows = max_rows;
    g.source = source;
    g.row_bytes = config_.hidden_size * static_cast<int64_t>(sizeof(Value));
    g.from = ws_.x;
    g.to = ws_.drawn_x;
    GatherRows(g, stream);
    x = ws_.drawn_x;
  }
  StartLinear(count, max_rows, x, weights_.head, static_cast<Value*>(nullptr), ws_.logits, stream);
}

// But for what is in device_attention.cc.
template class BasicDevicePasses<__nv_bfloat16>;
template class BasicDevicePasses<float>;

std::unique_ptr<DevicePasses> MakeDevicePasses(const model::Model& model, const DeviceWeights& weights,
                                               const DeviceEngram& engram, const StepBatch& batch,
                                               const DeviceWorkspace& workspace, uint8_t* slab) {
  const auto make = [&](const auto& typed) -> std::unique_ptr<DevicePasses> {
    return std::make_unique<BasicDevicePasses<std::remove_pointer_t<decltype(typed.x)>>>(model, weights, engram, batch,
                                                                                         typed, slab);
  };
  if (model.rounds_to_bf16()) return make(dynamic_cast<const BasicDeviceWorkspace<__nv_bfloat16>&>(workspace));
  return make(dynamic_cast<const BasicDeviceWorkspace<float>&>(workspace));
}

}  // namespace senko::runtime
