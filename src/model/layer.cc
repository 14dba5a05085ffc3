#include "model/layer.h"

#include <cmath>
#include <cstring>

#include "model/attention_layer.h"
#include "model/moe_layer.h"

namespace senko::model {
namespace {

void Mix(const PassContext& context, const MhcWeights& site, int64_t rows, float* pre) {
  const config::ModelConfig& config = context.model.config();
  Workspace& ws = context.workspace;
  ops::MhcMixParams p;
  p.rows = rows;
  p.streams = config.hc_mult;
  p.hidden = config.hidden_size;
  p.x = ws.stream.data();
  p.fn = site.fn;
  p.base = site.base;
  p.scale = site.scale;
  p.rms_eps = static_cast<float>(config.rms_norm_eps);
  p.hc_eps = static_cast<float>(config.hc_eps);
  p.sinkhorn_iters = config.hc_iters;
  p.mixes = ws.mixes.data();
  p.pre = pre;
  p.post = ws.post.data();
  p.comb = ws.comb.data();
  context.model.options().ops.mhc_mix(p, context.pool);
}

void Expand(const PassContext& context, int64_t rows) {
  const config::ModelConfig& config = context.model.config();
  Workspace& ws = context.workspace;
  ops::MhcExpandParams p;
  p.rows = rows;
  p.streams = config.hc_mult;
  p.hidden = config.hidden_size;
  p.y = ws.y.data();
  p.post = ws.post.data();
  p.comb = ws.comb.data();
  p.round_bf16 = context.model.rounds_to_bf16();
  p.x = ws.stream.data();
  context.model.options().ops.mhc_expand(p, context.pool);
}

void InjectEngram(const PassContext& context, std::span<const SequenceInput> sequences, const LayerWeights& layer,
                  const RowSet& rows) {
  const config::ModelConfig& config = context.model.config();
  const ops::OpTable& ops = context.model.options().ops;
  const EngramWeights& weights = *layer.engram;
  Workspace& ws = context.workspace;
  const int64_t slots = context.model.hasher()->slots();
  for (int64_t r = 0; r < rows.size(); ++r) {
    const SequenceInput& s = sequences[static_cast<size_t>(rows.sequences()[r])];
    context.model.hasher()->Rows(layer.plan.engram_slot, s.tokens, s.tokens_begin, rows.positions()[r],
                                 ws.engram_rows.data() + r * slots);
  }
  const engram::Tables& tables = *context.model.engram_tables();
  ops.engram_gather({rows.size(), slots, ws.engram_rows.data(), tables[layer.plan.engram_slot], ws.engram_in.data()},
                    context.pool);
  const int64_t width = slots * config.engram.head_dim;
  if (context.model.rounds_activations()) {
    ops.round_activations(ws.engram_in.data(), ws.engram_in.data(), rows.size(), width, context.pool);
  }
  const int64_t kv_width = (config.hc_mult + 1) * config.hidden_size;
  ops.linear({rows.size(), ws.engram_in.data(), width, weights.wkv, ws.engram_kv.data(), kv_width,
              context.model.rounds_to_bf16()},
             context.pool);
  ops::EngramInjectParams inject;
  inject.rows = rows.size();
  inject.streams = config.hc_mult;
  inject.hidden = config.hidden_size;
  inject.kv = ws.engram_kv.data();
  inject.q_weight = weights.q_weight;
  inject.k_weight = weights.k_weight;
  inject.rms_eps = static_cast<float>(config.rms_norm_eps);
  inject.is_image = rows.is_image();
  inject.round_bf16 = context.model.rounds_to_bf16();
  inject.x = ws.stream.data();
  ops.engram_inject(inject, context.pool);
}

}  // namespace

void ProbeFloats(const PassContext& context, const LayerWeights& layer, const char* point, const RowSet& rows,
                 int64_t width, float* data) {
  if (context.probe == nullptr) return;
  context.probe->Floats(layer.plan.layer, point, rows.positions(), rows.size(), width, data);
}

void Collapse(const PassContext& context, int64_t rows, const float* pre, const float* norm_weight) {
  const config::ModelConfig& config = context.model.config();
  Workspace& ws = context.workspace;
  ops::MhcCollapseParams p;
  p.rows = rows;
  p.streams = config.hc_mult;
  p.hidden = config.hidden_size;
  p.x = ws.stream.data();
  p.pre = pre;
  p.norm_weight = norm_weight;
  p.rms_eps = static_cast<float>(config.rms_norm_eps);
  p.round_bf16 = context.model.rounds_to_bf16();
  p.y = ws.x.data();
  context.model.options().ops.mhc_collapse(p, context.pool);
}

void ProduceKv(const PassContext& context, std::span<const SequenceInput> sequences, const LayerWeights& layer,
               const RowSet& rows, uint8_t* staging) {
  Workspace& ws = context.workspace;
  const config::ModelConfig& config = context.model.config();
  if (rows.size() == 0) return;
  ProbeFloats(context, layer, "stream_in", rows, config.stream_dim(), ws.stream.data());
  ProbeFloats(context, layer, "pre_in", rows, config.hc_mult, ws.pre.data());
  if (layer.engram) InjectEngram(context, sequences, layer, rows);
  Collapse(context, rows.size(), ws.pre.data(), layer.attn_norm);
  ProbeFloats(context, layer, "attn_in", rows, config.hidden_size, ws.x.data());
  RoundInput(context, rows.size());
  WriteLayerKv(context, layer, rows, staging);
}

void CommitWindow(const PassContext& context, const LayerWeights& layer, const RowSet& kv_rows, uint8_t* staging) {
  ops::WindowCommitParams p;
  p.sequences = kv_rows.sequence_kv().data();
  p.row_counts = kv_rows.row_counts();
  p.num_sequences = static_cast<int64_t>(kv_rows.sequence_kv().size());
  p.window = LayerWindow(context, layer, staging);
  ops::WindowCommit(p);
}

void RunLayer(const PassContext& context, std::span<const SequenceInput> sequences, const LayerWeights& layer,
              const LayerRows& lr) {
  Workspace& ws = context.workspace;
  const config::ModelConfig& config = context.model.config();
  const int64_t n = lr.rows.size();
  if (n == 0) {
    CommitWindow(context, layer, lr.kv_rows, lr.staging);
    return;
  }
  if (!lr.kv_written) {
    ProbeFloats(context, layer, "stream_in", lr.rows, config.stream_dim(), ws.stream.data());
    ProbeFloats(context, layer, "pre_in", lr.rows, config.hc_mult, ws.pre.data());
    if (layer.engram) InjectEngram(context, sequences, layer, lr.rows);
  }

  Mix(context, layer.attn_site, n, ws.pre_next.data());
  Collapse(context, n, ws.pre.data(), layer.attn_norm);
  ProbeFloats(context, layer, "attn_in", lr.rows, config.hidden_size, ws.x.data());
  RoundInput(context, n);
  if (!lr.kv_written) WriteLayerKv(context, layer, lr.rows, lr.staging);
  RunAttention(context, layer, lr);
  CommitWindow(context, layer, lr.kv_rows, lr.staging);
  ProbeFloats(context, layer, "attn_out", lr.rows, config.hidden_size, ws.y.data());
  Expand(context, n);
  std::swap(ws.pre, ws.pre_next);  // the FFN collapses with the attention site's own pre
  ProbeFloats(context, layer, "stream_mid", lr.rows, config.stream_dim(), ws.stream.data());
  ProbeFloats(context, layer, "pre_mid", lr.rows, config.hc_mult, ws.pre.data());

  Mix(context, layer.ffn_site, n, ws.pre_next.data());
  Collapse(context, n, ws.pre.data(), layer.ffn_norm);
  ProbeFloats(context, layer, "ffn_in", lr.rows, config.hidden_size, ws.x.data());
  RoundInput(context, n);
  RunMoe(context, layer, lr.rows);
  ProbeFloats(context, layer, "ffn_out", lr.rows, config.hidden_size, ws.y.data());
  Expand(context, n);
  std::swap(ws.pre, ws.pre_next);
}

}  // namespace senko::model
