#include "runtime/cuda/device_passes.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "cuda/check.h"
#include "ops/attention/attention_sm90.h"
#include "ops/kv_write/kv_write_sm90.h"
#include "ops/mhc/mhc_sm90.h"
#include "ops/output_proj/output_proj_sm90.h"
#include "ops/select/select_sm90.h"
#include "runtime/cuda/row_moves.h"

namespace senko::runtime {
namespace {

// Up to so many rows the branches of a layer run side by side: its kernels then leave most of the GPU idle.
constexpr int64_t kForkRows = 64;
// Blocks that read Engram rows from host memory while the first layers compute.
constexpr int32_t kEngramBlocks = 16;

}  // namespace

struct DevicePasses::Rows {
  const DeviceRows& meta;
  int64_t max;
  __nv_bfloat16* streams;
  float* pre;
};

struct DevicePasses::Output {
  const __nv_bfloat16* y = nullptr;
  int64_t slots = 1;
};

DevicePasses::DevicePasses(const model::Model& model, const DeviceWeights& weights, const DeviceEngram& engram,
                           const StepBatch& batch, const DeviceWorkspace& workspace, uint8_t* slab)
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

DevicePasses::~DevicePasses() {
  for (cudaEvent_t event : {seam_done_, mix_done_, spread_done_}) cudaEventDestroy(event);
  for (cudaEvent_t event : engram_done_) cudaEventDestroy(event);
  cudaStreamDestroy(side_);
  cudaStreamDestroy(engram_stream_);
}

void DevicePasses::Begin(std::string_view op, int64_t layer) {
  if (observer_ != nullptr) observer_->Begin(op, layer, main_);
}

void DevicePasses::Linear(const Rows& rows, const __nv_bfloat16* x, const ops::TiledWeight& weight, __nv_bfloat16* y,
                          float* y_float, const int32_t* count) {
  ops::LinearSm90Params p;
  p.rows = count != nullptr ? count : rows.meta.count;
  p.max_rows = rows.max;
  p.x = x;
  p.x_stride = weight.in;
  p.weight = weight;
  p.y_bf16 = y;
  p.y_float = y_float;
  p.y_stride = weight.out;
  ops::LinearSm90(p, main_);
}

// Adds what the sublayer before gave to the streams; x = the next one's input, xq = the same, rounded.
void DevicePasses::Seam(const Rows& rows, Output& before, const float* norm, bool rounded) {
  ops::MhcSeamSm90Params p;
  p.rows = rows.meta.count;
  p.max_rows = rows.max;
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
void DevicePasses::Mix(const Rows& rows, const DeviceMhcSite& site) {
  ops::MhcMixSm90Params p;
  p.rows = rows.meta.count;
  p.max_rows = rows.max;
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

void DevicePasses::JoinMix() {
  if (mix_forked_) SENKO_CUDA(cudaStreamWaitEvent(main_, mix_done_, 0));
  mix_forked_ = false;
}

// Token ids alone say which rows a layer reads: all are asked for when the pass begins.
void DevicePasses::GatherEngram(const PassBounds& bounds, bool decoder) {
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
    ops::LinearSm90Params l;
    l.rows = rows.count;
    l.max_rows = max;
    l.x = ws_.engram_in[i];
    l.x_stride = wkv.in;
    l.weight = wkv;
    l.y_bf16 = ws_.engram_kv[i];
    l.y_stride = wkv.out;
    ops::LinearSm90(l, stream);
    if (fork) SENKO_CUDA(cudaEventRecord(engram_done_[i], stream));
  }
}

void DevicePasses::Engram(const Rows& rows, const DeviceLayer& layer) {
  const auto i = static_cast<size_t>(layer.plan.engram_slot);
  if (!watched()) SENKO_CUDA(cudaStreamWaitEvent(main_, engram_done_[i], 0));
  ops::EngramInjectSm90Params p;
  p.rows = rows.meta.count;
  p.max_rows = rows.max;
  p.hidden = config_.hidden_size;
  p.kv = ws_.engram_kv[i];
  p.q_weight = layer.engram->q_weight;
  p.k_weight = layer.engram->k_weight;
  p.rms_eps = static_cast<float>(config_.rms_norm_eps);
  p.is_image = rows.meta.is_image;
  p.streams = rows.streams;
  ops::EngramInjectSm90(p, main_);
}

ops::EntryView DevicePasses::Entries(int source_slot) const {
  const config::PageLayout& layout = model_.page_layout();
  const config::PageSource& source = layout.sources[static_cast<size_t>(source_slot)];
  ops::EntryView view;
  view.slab = slab_;
  view.page_bytes = layout.page_bytes;
  view.entries_per_page = source.entries_per_page;
  view.entry_offset = source.entry_offset;
  view.entry_stride = layout.entry_stride;
  view.key_value_offset = source.key_value_offset;
  view.key_value_bytes = layout.key_value_bytes;
  view.key_scale_offset = source.key_scale_offset;
  view.key_scale_bytes = layout.key_scale_bytes;
  return view;
}

// The projection of the latents and what is made of them: window rows always, queries where the layer attends.
void DevicePasses::WriteKv(const Rows& rows, const DeviceLayer& layer, bool with_queries) {
  const int64_t l = layer.plan.layer;
  Begin("latents", l);
  const int64_t q_dim = with_queries ? config_.q_lora_rank : 0, width = q_dim + config_.head_dim;
  Linear(rows, ws_.xq, with_queries ? layer.latents : layer.wkv, ws_.latents);
  if (probe_ != nullptr) {
    probe_->Floats(l, "kv", config_.head_dim, ws_.latents + q_dim, width);
    if (with_queries) probe_->Floats(l, "qa", q_dim, ws_.latents, width);
  }
  Begin("latent_norms", l);
  ops::LatentNormsSm90Params p;
  p.rows = rows.meta.count;
  p.max_rows = rows.max;
  p.latents = ws_.latents;
  p.q_dim = q_dim;
  p.q_weight = layer.q_norm;
  p.q = ws_.qrq;
  p.dim = config_.head_dim;
  p.rope_dim = config_.rope_dim;
  p.kv_weight = layer.kv_norm;
  p.rms_eps = static_cast<float>(config_.rms_norm_eps);
  p.rope = layer.plan.compressed_rope ? rows.meta.rope_compressed : rows.meta.rope_plain;
  p.row_stride = model_.slot_layout().row_stride;
  p.staging = Staging(l);
  ops::LatentNormsSm90(p, main_);
  if (layer.compressor) WriteEntries(rows, layer);
}

void DevicePasses::WriteEntries(const Rows& rows, const DeviceLayer& layer) {
  const int64_t l = layer.plan.layer;
  const DeviceCompressor& compressor = *layer.compressor;
  const bool pairs = layer.plan.ratio == 2;
  const DeviceLatents& latents = batch_.latents(layer.plan.ratio);
  const config::SlotLayout& slot = model_.slot_layout();
  Begin("compressor", l);
  // Ratio 2 pools in float32; ratio 1 is an ordinary bf16 linear.
  Linear(rows, ws_.x, compressor.wkv, pairs ? nullptr : ws_.compressor_c, pairs ? ws_.compressor_cz : nullptr);
  const int64_t d = config_.head_dim;
  if (probe_ != nullptr && pairs) {
    probe_->Floats(l, "c", d, ws_.compressor_cz, 2 * d);
    probe_->Floats(l, "z", d, ws_.compressor_cz + d, 2 * d);
  } else if (probe_ != nullptr) {
    probe_->Floats(l, "c", d, ws_.compressor_c, d);
  }
  Begin("compress", l);
  ops::CompressSm90Params c;
  c.count = latents.count;
  c.max_count = rows.max;
  c.latents = latents.latents;
  c.ratio = layer.plan.ratio;
  c.dim = config_.head_dim;
  c.c = ws_.compressor_c;
  c.cz = ws_.compressor_cz;
  c.sequences = rows.meta.batch.sequence_kv;
  c.pending_offset = slot.PendingOffset(layer.plan.kv_source_slot);
  c.pending_rows = slot.pending_rows;
  c.norm_weight = compressor.norm;
  c.rms_eps = static_cast<float>(config_.rms_norm_eps);
  c.out = ws_.latent;
  ops::CompressSm90(c, main_);
  if (pairs) {
    ops::PendingStoreSm90Params s;
    s.num_sequences = batch_.num_sequences();
    s.max_sequences = max_sequences_;
    s.sequences = rows.meta.batch.sequence_kv;
    s.row_counts = rows.meta.row_counts;
    s.positions = rows.meta.batch.positions;
    s.dim = config_.head_dim;
    s.cz = ws_.compressor_cz;
    s.pending_offset = c.pending_offset;
    s.pending_rows = slot.pending_rows;
    ops::PendingStoreSm90(s, main_);
  }
  Begin("index_keys", l);
  if (probe_ != nullptr) probe_->Entries(l, "latent", d, ws_.latent, latents);
  Linear(rows, ws_.latent, compressor.wk, ws_.key, nullptr, latents.count);
  if (probe_ != nullptr) probe_->Entries(l, "key", config_.index_dim, ws_.key, latents);
  Begin("entry_write", l);
  ops::EntryWriteSm90Params e;
  e.count = latents.count;
  e.max_count = rows.max;
  e.latents = latents.latents;
  e.dim = config_.head_dim;
  e.index_dim = config_.index_dim;
  e.rope_dim = config_.rope_dim;
  e.latent = ws_.latent;
  e.k = ws_.key;
  e.k_norm = compressor.k_norm;
  e.rms_eps = static_cast<float>(config_.rms_norm_eps);
  e.rope = latents.rope;
  e.sequences = rows.meta.batch.sequence_kv;
  e.entries = Entries(layer.plan.kv_source_slot);
  ops::EntryWriteSm90(e, main_);
}

void DevicePasses::Select(const Rows& rows, const DeviceLayer& layer) {
  const int64_t l = layer.plan.layer;
  Begin("index_query", l);
  Linear(rows, ws_.qrq, layer.indexer->wq_b, ws_.index_q);
  Linear(rows, ws_.x, layer.indexer->weights_proj, ws_.index_w);
  if (probe_ != nullptr) {
    const int64_t width = config_.index_heads * config_.index_dim;
    probe_->Floats(l, "index_q", width, ws_.index_q, width);
    probe_->Floats(l, "index_w", config_.index_heads, ws_.index_w, config_.index_heads);
  }
  ops::IndexQuerySm90Params q;
  q.rows = rows.meta.count;
  q.max_rows = rows.max;
  q.heads = config_.index_heads;
  q.dim = config_.index_dim;
  q.rope_dim = config_.rope_dim;
  q.q = ws_.index_q;
  q.rope = rows.meta.rope_compressed;
  q.w = ws_.index_w;
  q.weight_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.index_dim * config_.index_heads)));
  q.values = ws_.index_values;
  q.scales = ws_.index_scales;
  q.weights = ws_.index_weights;
  ops::IndexQuerySm90(q, main_);

  Begin("select", l);
  ops::SelectSm90Params s;
  s.num_rows = rows.meta.count;
  s.max_rows = rows.max;
  s.rows = rows.meta.batch;
  s.ratio = layer.plan.ratio;
  s.heads = config_.index_heads;
  s.dim = config_.index_dim;
  s.q_values = ws_.index_values;
  s.q_scales = ws_.index_scales;
  s.weights = ws_.index_weights;
  s.entries = Entries(layer.plan.kv_source_slot);
  s.topk = config_.index_topk;
  if (layer.plan.restricted_to_candidates) {
    s.candidates = ws_.candidates;
    s.candidate_count = ws_.candidate_count;
  }
  if (layer.plan.candidate_source) {
    s.candidates_out = ws_.candidates;
    s.candidate_count_out = ws_.candidate_count;
  }
  s.candidate_blocks = config_.candidate_blocks;
  s.candidate_block_size = config_.candidate_block_size;
  s.candidate_stride = config_.candidate_blocks;
  s.selected = ws_.selected;
  s.selected_count = ws_.selected_count;
  s.selected_stride = config_.index_topk;
  s.scratch = ws_.select_scratch;
  s.scratch_bytes = ws_.select_scratch_bytes;
  ops::SelectSm90(s, main_);
  if (probe_ == nullptr) return;
  probe_->Chosen(l, "select", s.topk, ws_.selected, ws_.selected_count, s.ratio, 1);
  if (!layer.plan.candidate_source) return;
  probe_->Chosen(l, "candidates", s.candidate_stride, ws_.candidates, ws_.candidate_count, s.ratio,
                 s.candidate_block_size);
}

// ws.x, ws.xq -> ws.y.
void DevicePasses::Attention(const Rows& rows, const DeviceLayer& layer, bool kv_written) {
  const int64_t l = layer.plan.layer;
  if (!kv_written) {
    WriteKv(rows, layer, true);
  } else {
    Begin("latents", l);
    Linear(rows, ws_.xq, layer.wq_a, ws_.latents);
    if (probe_ != nullptr) probe_->Floats(l, "qa", config_.q_lora_rank, ws_.latents, config_.q_lora_rank);
    Begin("latent_norms", l);
    ops::LatentNormsSm90Params p;
    p.rows = rows.meta.count;
    p.max_rows = rows.max;
    p.latents = ws_.latents;
    p.q_dim = config_.q_lora_rank;
    p.q_weight = layer.q_norm;
    p.q = ws_.qrq;
    p.rms_eps = static_cast<float>(config_.rms_norm_eps);
    ops::LatentNormsSm90(p, main_);
  }
  if (probe_ != nullptr) probe_->Floats(l, "qr", config_.q_lora_rank, ws_.qrq, config_.q_lora_rank);
  Begin("wq_b", l);
  Linear(rows, ws_.qrq, layer.wq_b, ws_.q);
  const int64_t heads_width = config_.num_heads * config_.head_dim;
  if (probe_ != nullptr) probe_->Floats(l, "q", heads_width, ws_.q, heads_width);
  if (layer.indexer) Select(rows, layer);

  Begin("attention", l);
  const config::SlotLayout& slot = model_.slot_layout();
  ops::AttentionSm90Params a;
  a.num_rows = rows.meta.count;
  a.max_rows = rows.max;
  a.rows = rows.meta.batch;
  a.heads = config_.num_heads;
  a.dim = config_.head_dim;
  a.rope_dim = config_.rope_dim;
  a.max_window = config_.window;
  a.q = ws_.q;
  a.rope = layer.plan.compressed_rope ? rows.meta.rope_compressed : rows.meta.rope_plain;
  a.sink = layer.sink;
  a.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim)));
  a.window = {slot.RingOffset(l), slot.ring_rows, slot.row_stride, Staging(l)};
  if (layer.plan.ratio > 0) {
    a.selected = ws_.selected;
    a.selected_count = ws_.selected_count;
    a.selected_stride = config_.index_topk;
    a.entries = Entries(layer.plan.kv_source_slot);
  }
  a.scratch = ws_.attention_scratch;
  a.out = ws_.o;
  ops::AttentionSm90(a, main_);
  if (probe_ != nullptr) probe_->Floats(l, "o", heads_width, ws_.o, heads_width);

  Begin("output_proj", l);
  ops::OutputProjSm90Params o;
  o.rows = rows.meta.count;
  o.max_rows = rows.max;
  o.groups = config_.o_groups;
  o.o = ws_.o;
  o.wo_a = layer.wo_a;
  o.wo_b = layer.wo_b;
  o.u = ws_.u;
  o.y = ws_.y;
  o.round_activations = true;
  ops::OutputProjSm90(o, main_);
  if (probe_ != nullptr) probe_->Floats(l, "attn_out", config_.hidden_size, ws_.y, config_.hidden_size);
}

// ws.x, ws.xq -> ws.slots.
void DevicePasses::Moe(const Rows& rows, const DeviceLayer& layer) {
  const int64_t l = layer.plan.layer, topk = config_.experts_per_token;
  const int64_t row_slots = topk + (layer.shared.inter > 0);
  Begin("router", l);
  ops::RouterSm90Params r;
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
  ops::ExpertsSm90Params e;
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
void DevicePasses::ShowStreams(const Rows& rows, int64_t layer, bool middle, const float* norm, Output& before) {
  if (probe_ == nullptr) return;
  if (before.y != nullptr) Seam(rows, before, norm, false);
  const int64_t width = config_.stream_dim();
  probe_->Floats(layer, middle ? "stream_mid" : "stream_in", width, rows.streams, width);
  probe_->Floats(layer, middle ? "pre_mid" : "pre_in", ops::kMhcStreams, rows.pre, ops::kMhcStreams);
}

void DevicePasses::Layer(const Rows& rows, const DeviceLayer& layer, bool kv_written, Output& before) {
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

void DevicePasses::ProduceKv(const Rows& rows, const DeviceLayer& layer, Output& before) {
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

void DevicePasses::Commit(const Rows& rows, int64_t first_layer, int64_t num_layers) {
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

void DevicePasses::Encoder(const PassBounds& bounds, cudaStream_t stream) {
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
  EmbedParams embed;
  embed.rows = rows.meta.count;
  embed.max_rows = rows.max;
  embed.tokens = batch_.tokens();
  embed.embed = weights_.embed;
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

void DevicePasses::Decoder(const PassBounds& bounds, cudaStream_t stream) {
  main_ = stream;
  max_sequences_ = batch_.limits().max_sequences;
  const int64_t seam = config_.last_kv_source();
  const Rows written{batch_.encoder(), 0, nullptr, nullptr};
  if (bounds.decoder_rows == 0) {
    if (seam >= 0) Commit(written, seam, 1);
    return;
  }
  __nv_bfloat16* streams = bounds.all_kept ? ws_.encoder_streams : ws_.decoder_streams;
  float* pre = bounds.all_kept ? ws_.encoder_pre : ws_.decoder_pre;
  if (probe_ != nullptr) probe_->BeginPass(batch_.decoder(), main_);
  GatherEngram(bounds, true);
  if (!bounds.all_kept) {
    Begin("kept_rows", -1);
    GatherRowsParams g;
    g.rows = batch_.decoder().count;
    g.max_rows = bounds.decoder_rows;
    g.source = batch_.source_rows();
    g.row_bytes = config_.stream_dim() * 2;
    g.from = ws_.encoder_streams;
    g.to = streams;
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

}  // namespace senko::runtime
