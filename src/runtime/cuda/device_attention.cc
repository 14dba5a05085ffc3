// The attention half of a layer: what it writes for later rows (window, entries), what it selects, attention itself.
#include <cmath>

#include "ops/attention/attention_sm90.h"
#include "ops/kv_write/kv_write_sm90.h"
#include "ops/output_proj/output_proj_sm90.h"
#include "ops/select/select_sm90.h"
#include "runtime/cuda/basic_device_passes.h"

namespace senko::runtime {

template <typename Value>
ops::EntryView BasicDevicePasses<Value>::Entries(int source_slot) const {
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
template <typename Value>
void BasicDevicePasses<Value>::WriteKv(const Rows& rows, const DeviceLayer& layer, bool with_queries) {
  const int64_t l = layer.plan.layer;
  Begin("latents", l);
  const int64_t q_dim = with_queries ? config_.q_lora_rank : 0, width = q_dim + config_.head_dim;
  Linear(rows, ws_.xq, with_queries ? layer.latents : layer.wkv, ws_.latents);
  if (probe_ != nullptr) {
    probe_->Floats(l, "kv", config_.head_dim, ws_.latents + q_dim, width);
    if (with_queries) probe_->Floats(l, "qa", q_dim, ws_.latents, width);
  }
  Begin("latent_norms", l);
  ops::BasicLatentNormsSm90Params<Value> p;
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

template <typename Value>
void BasicDevicePasses<Value>::WriteEntries(const Rows& rows, const DeviceLayer& layer) {
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
  ops::BasicCompressSm90Params<Value> c;
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
  ops::BasicEntryWriteSm90Params<Value> e;
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

template <typename Value>
void BasicDevicePasses<Value>::Select(const Rows& rows, const DeviceLayer& layer) {
  const int64_t l = layer.plan.layer;
  Begin("index_query", l);
  Linear(rows, ws_.qrq, layer.indexer->wq_b, ws_.index_q);
  Linear(rows, ws_.x, layer.indexer->weights_proj, ws_.index_w);
  if (probe_ != nullptr) {
    const int64_t width = config_.index_heads * config_.index_dim;
    probe_->Floats(l, "index_q", width, ws_.index_q, width);
    probe_->Floats(l, "index_w", config_.index_heads, ws_.index_w, config_.index_heads);
  }
  ops::BasicIndexQuerySm90Params<Value> q;
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
template <typename Value>
void BasicDevicePasses<Value>::Attention(const Rows& rows, const DeviceLayer& layer, bool kv_written) {
  const int64_t l = layer.plan.layer;
  if (!kv_written) {
    WriteKv(rows, layer, true);
  } else {
    Begin("latents", l);
    Linear(rows, ws_.xq, layer.wq_a, ws_.latents);
    if (probe_ != nullptr) probe_->Floats(l, "qa", config_.q_lora_rank, ws_.latents, config_.q_lora_rank);
    Begin("latent_norms", l);
    ops::BasicLatentNormsSm90Params<Value> p;
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
  ops::BasicAttentionSm90Params<Value> a;
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
  a.out = ws_.o;
  ops::AttentionSm90(a, main_);
  if (probe_ != nullptr) probe_->Floats(l, "o", heads_width, ws_.o, heads_width);

  Begin("output_proj", l);
  ops::BasicOutputProjSm90Params<Value> o;
  o.rows = rows.meta.count;
  o.max_rows = rows.max;
  o.groups = config_.o_groups;
  o.o = ws_.o;
  o.wo_a = layer.wo_a;
  o.wo_b = layer.wo_b;
  o.u = ws_.u;
  o.y = ws_.y;
  o.round_activations = sizeof(Value) == 2;
  ops::OutputProjSm90(o, main_);
  if (probe_ != nullptr) probe_->Floats(l, "attn_out", config_.hidden_size, ws_.y, config_.hidden_size);
}

template void BasicDevicePasses<__nv_bfloat16>::WriteKv(const Rows&, const DeviceLayer&, bool);
template void BasicDevicePasses<__nv_bfloat16>::Attention(const Rows&, const DeviceLayer&, bool);
template void BasicDevicePasses<float>::WriteKv(const Rows&, const DeviceLayer&, bool);
template void BasicDevicePasses<float>::Attention(const Rows&, const DeviceLayer&, bool);

}  // namespace senko::runtime
