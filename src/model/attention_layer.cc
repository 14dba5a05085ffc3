#include "model/attention_layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "ops/norm/norm.h"

namespace senko::model {
namespace {

void Linear(const PassContext& context, int64_t rows, const float* x, const ops::WeightView& weight, float* y,
            bool round) {
  context.model.options().ops.linear({rows, x, weight.in, weight, y, weight.out, round}, context.pool);
}

ops::EntryView SourceEntries(const PassContext& context, int source_slot) {
  const config::PageLayout& layout = context.model.page_layout();
  const config::PageSource& source = layout.sources[static_cast<size_t>(source_slot)];
  ops::EntryView view;
  view.slab = context.slab;
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

// Keeps (c, z) of the last first-of-a-pair tokens, whose groups are open or may be opened again by taking rows back.
void StorePending(const PassContext& context, const LayerWeights& layer, const RowSet& rows) {
  const config::SlotLayout& layout = context.model.slot_layout();
  const int64_t d = context.model.config().head_dim;
  const size_t bytes = static_cast<size_t>(d) * sizeof(float);
  const Workspace& ws = context.workspace;
  for (size_t i = 0; i < rows.sequence_kv().size(); ++i) {
    const ops::SequenceKv& s = rows.sequence_kv()[i];
    const int64_t count = rows.row_counts()[i];
    for (int64_t k = std::max<int64_t>(count - 2 * layout.pending_rows, 0); k < count; ++k) {
      const int64_t row = s.staging_begin + k, position = rows.positions()[row];
      if (position % 2 != 0) continue;
      uint8_t* pending = s.slot + layout.PendingOffset(layer.plan.kv_source_slot) +
                         static_cast<size_t>(position / 2 % layout.pending_rows) * 2 * bytes;
      std::memcpy(pending, ws.c.data() + row * d, bytes);
      std::memcpy(pending + bytes, ws.z.data() + row * d, bytes);
    }
  }
}

void ProbeEntries(const PassContext& context, const LayerWeights& layer, const char* point, const LatentSet& latents,
                  int64_t width, float* data) {
  if (context.probe == nullptr) return;
  std::vector<int64_t> entries;
  for (int64_t i = 0; i < latents.size(); ++i) entries.push_back(latents.latents()[i].entry);
  context.probe->Floats(layer.plan.layer, point, entries.data(), latents.size(), width, data);
}

void WriteEntries(const PassContext& context, const LayerWeights& layer, const RowSet& rows) {
  const config::ModelConfig& config = context.model.config();
  const ops::OpTable& ops = context.model.options().ops;
  const CompressorWeights& compressor = *layer.compressor;
  const bool round = context.model.rounds_to_bf16();
  const bool pairs = layer.plan.ratio == 2;
  const float eps = static_cast<float>(config.rms_norm_eps);
  Workspace& ws = context.workspace;
  const LatentSet& latents = pairs ? ws.latents2 : ws.latents1;

  // Ratio 2 pools in float32; ratio 1 is an ordinary bf16 linear.
  Linear(context, rows.size(), ws.x.data(), compressor.wkv, ws.c.data(), round && !pairs);
  if (pairs) Linear(context, rows.size(), ws.x.data(), compressor.wgate, ws.z.data(), false);
  ProbeFloats(context, layer, "c", rows, config.head_dim, ws.c.data());
  if (pairs) ProbeFloats(context, layer, "z", rows, config.head_dim, ws.z.data());

  if (latents.size() > 0) {
    ops::CompressParams p;
    p.count = latents.size();
    p.latents = latents.latents();
    p.ratio = layer.plan.ratio;
    p.dim = config.head_dim;
    p.c = ws.c.data();
    p.z = pairs ? ws.z.data() : nullptr;
    p.sequences = rows.sequence_kv().data();
    p.pending_offset = context.model.slot_layout().PendingOffset(layer.plan.kv_source_slot);
    p.pending_rows = context.model.slot_layout().pending_rows;
    p.norm_weight = compressor.norm;
    p.rms_eps = eps;
    p.round_bf16 = round;
    p.out = ws.latent.data();
    ops.compress(p, context.pool);
    ProbeEntries(context, layer, "latent", latents, config.head_dim, ws.latent.data());

    Linear(context, latents.size(), ws.latent.data(), compressor.wk, ws.key.data(), round);
    ProbeEntries(context, layer, "key", latents, config.index_dim, ws.key.data());
    const ops::EntryView entries = SourceEntries(context, layer.plan.kv_source_slot);
    ops::KeyWriteParams k;
    k.count = latents.size();
    k.latents = latents.latents();
    k.dim = config.index_dim;
    k.rope_dim = config.rope_dim;
    k.k = ws.key.data();
    k.norm_weight = compressor.k_norm;
    k.rms_eps = eps;
    k.rope = latents.rope();
    k.round_bf16 = round;
    k.sequences = rows.sequence_kv().data();
    k.entries = entries;
    ops.key_write(k, context.pool);

    ops::EntryWriteParams e;
    e.count = latents.size();
    e.latents = latents.latents();
    e.dim = config.head_dim;
    e.rope_dim = config.rope_dim;
    e.latent = ws.latent.data();
    e.rope = latents.rope();
    e.round_bf16 = round;
    e.sequences = rows.sequence_kv().data();
    e.entries = entries;
    ops.entry_write(e, context.pool);
  }
  if (pairs) StorePending(context, layer, rows);
}

void SelectEntries(const PassContext& context, const LayerWeights& layer, const LayerRows& lr) {
  const config::ModelConfig& config = context.model.config();
  const ops::OpTable& ops = context.model.options().ops;
  const bool round = context.model.rounds_to_bf16();
  Workspace& ws = context.workspace;
  const int64_t n = lr.rows.size();

  Linear(context, n, ws.qrq.data(), layer.indexer->wq_b, ws.index_q.data(), round);
  ProbeFloats(context, layer, "index_q", lr.rows, config.index_heads * config.index_dim, ws.index_q.data());
  ops::IndexQueryParams q;
  q.rows = n;
  q.heads = config.index_heads;
  q.dim = config.index_dim;
  q.rope_dim = config.rope_dim;
  q.q = ws.index_q.data();
  q.rope = lr.rows.rope(true);
  q.round_bf16 = round;
  q.values = ws.index_q_values.data();
  q.scales = ws.index_q_scales.data();
  ops.index_query(q, context.pool);

  Linear(context, n, ws.x.data(), layer.indexer->weights_proj, ws.index_w.data(), round);
  ProbeFloats(context, layer, "index_w", lr.rows, config.index_heads, ws.index_w.data());
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.index_dim * config.index_heads)));
  for (int64_t i = 0; i < n * config.index_heads; ++i) ws.index_w[static_cast<size_t>(i)] *= scale;
  for (int64_t r = 0; r < n; ++r) {
    ws.visible[static_cast<size_t>(r)] = (lr.rows.positions()[r] + 1) / layer.plan.ratio;
  }

  ops::SelectParams s;
  s.score.rows = lr.batch;
  s.score.heads = config.index_heads;
  s.score.dim = config.index_dim;
  s.score.q_values = ws.index_q_values.data();
  s.score.q_scales = ws.index_q_scales.data();
  s.score.weights = ws.index_w.data();
  s.score.entries = SourceEntries(context, layer.plan.kv_source_slot);
  s.topk = config.index_topk;
  s.visible = ws.visible.data();
  if (layer.plan.restricted_to_candidates) {
    s.candidates = ws.candidates.data();
    s.candidate_count = ws.candidate_count.data();
  }
  if (layer.plan.candidate_source) {
    s.candidates_out = ws.candidates.data();
    s.candidate_count_out = ws.candidate_count.data();
  }
  s.candidate_blocks = config.candidate_blocks;
  s.candidate_block_size = config.candidate_block_size;
  s.candidate_stride = config.candidate_blocks;
  s.selected = ws.selected.data();
  s.selected_count = ws.selected_count.data();
  s.selected_stride = config.index_topk;
  ops.select(s, context.pool);

  if (context.probe != nullptr) {
    context.probe->Ints(layer.plan.layer, "select", lr.rows.positions(), n, config.index_topk, ws.visible.data(),
                        ws.selected.data(), ws.selected_count.data());
    if (layer.plan.candidate_source) {
      std::vector<int64_t> blocks(ws.visible.data(), ws.visible.data() + n);
      for (int64_t& b : blocks) b = (b + config.candidate_block_size - 1) / config.candidate_block_size;
      context.probe->Ints(layer.plan.layer, "candidates", lr.rows.positions(), n, config.candidate_blocks,
                          blocks.data(), ws.candidates.data(), ws.candidate_count.data());
    }
  }
}

}  // namespace

void RoundInput(const PassContext& context, int64_t rows) {
  Workspace& ws = context.workspace;
  const int64_t d = context.model.config().hidden_size;
  if (context.model.rounds_activations()) {
    context.model.options().ops.round_activations(ws.x.data(), ws.xq.data(), rows, d, context.pool);
  } else {
    std::memcpy(ws.xq.data(), ws.x.data(), static_cast<size_t>(rows * d) * sizeof(float));
  }
}

ops::WindowView LayerWindow(const PassContext& context, const LayerWeights& layer, uint8_t* staging) {
  const config::SlotLayout& slot = context.model.slot_layout();
  return {slot.RingOffset(layer.plan.layer), slot.ring_rows, slot.row_stride, staging};
}

void WriteLayerKv(const PassContext& context, const LayerWeights& layer, const RowSet& rows, uint8_t* staging) {
  const config::ModelConfig& config = context.model.config();
  Workspace& ws = context.workspace;
  const bool round = context.model.rounds_to_bf16();
  Linear(context, rows.size(), ws.xq.data(), layer.wkv, ws.kv.data(), round);
  ProbeFloats(context, layer, "kv", rows, config.head_dim, ws.kv.data());
  ops::WindowWriteParams p;
  p.rows = rows.size();
  p.dim = config.head_dim;
  p.rope_dim = config.rope_dim;
  p.kv = ws.kv.data();
  p.norm_weight = layer.kv_norm;
  p.rms_eps = static_cast<float>(config.rms_norm_eps);
  p.rope = rows.rope(layer.plan.compressed_rope);
  p.round_bf16 = round;
  p.row_stride = context.model.slot_layout().row_stride;
  p.staging = staging;
  context.model.options().ops.window_write(p, context.pool);
  if (layer.compressor) WriteEntries(context, layer, rows);
}

void RunAttention(const PassContext& context, const LayerWeights& layer, const LayerRows& lr) {
  const config::ModelConfig& config = context.model.config();
  const ops::OpTable& ops = context.model.options().ops;
  const bool round = context.model.rounds_to_bf16();
  Workspace& ws = context.workspace;
  const int64_t n = lr.rows.size();

  Linear(context, n, ws.xq.data(), layer.wq_a, ws.qr.data(), round);
  ProbeFloats(context, layer, "qa", lr.rows, config.q_lora_rank, ws.qr.data());
  ops.rms_norm(
      {n, config.q_lora_rank, ws.qr.data(), layer.q_norm, static_cast<float>(config.rms_norm_eps), ws.qr.data(), round},
      context.pool);
  if (context.model.rounds_activations()) {
    ops.round_activations(ws.qr.data(), ws.qrq.data(), n, config.q_lora_rank, context.pool);
  } else {
    std::memcpy(ws.qrq.data(), ws.qr.data(), static_cast<size_t>(n * config.q_lora_rank) * sizeof(float));
  }
  ProbeFloats(context, layer, "qr", lr.rows, config.q_lora_rank, ws.qrq.data());
  Linear(context, n, ws.qrq.data(), layer.wq_b, ws.q.data(), round);
  ProbeFloats(context, layer, "q", lr.rows, config.num_heads * config.head_dim, ws.q.data());
  if (layer.indexer) SelectEntries(context, layer, lr);

  ops::AttentionParams a;
  a.rows = lr.batch;
  a.heads = config.num_heads;
  a.dim = config.head_dim;
  a.rope_dim = config.rope_dim;
  a.q = ws.q.data();
  a.rope = lr.rows.rope(layer.plan.compressed_rope);
  a.sink = layer.sink;
  a.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  a.round_bf16 = round;
  a.window = LayerWindow(context, layer, lr.staging);
  if (layer.plan.ratio > 0) {
    a.selected = ws.selected.data();
    a.selected_count = ws.selected_count.data();
    a.selected_stride = config.index_topk;
    a.entries = SourceEntries(context, layer.plan.kv_source_slot);
  }
  a.out = ws.o.data();
  ops.attention(a, context.pool);
  ProbeFloats(context, layer, "o", lr.rows, config.num_heads * config.head_dim, ws.o.data());

  ops::OutputProjParams o;
  o.rows = n;
  o.groups = config.o_groups;
  o.o = ws.o.data();
  o.wo_a = layer.wo_a;
  o.wo_b = layer.wo_b;
  o.u = ws.u.data();
  o.y = ws.y.data();
  o.round_bf16 = round;
  o.round_activations = context.model.rounds_activations();
  ops.output_proj(o, context.pool);
}

}  // namespace senko::model
