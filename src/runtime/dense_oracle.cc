#include "runtime/dense_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/thread_pool.h"
#include "numerics/bf16.h"
#include "numerics/packed_rows.h"
#include "ops/op_table.h"

namespace senko::runtime {
namespace {

using Floats = std::vector<float>;

constexpr size_t kSlack = 64;  // behind the last page

struct Row {
  Floats x;    // the streams [hc * D]
  Floats pre;  // [hc]
  Floats in;   // normed input of the sublayer, and the same rounded
  Floats in_q;
  std::vector<int32_t> selected, candidates;
};

class Dense {
 public:
  Dense(const model::Model& model, const DenseInput& input)
      : model_(model), c_(model.config()), in_(input), pool_(1), round_(model.rounds_to_bf16()) {
    n_ = static_cast<int64_t>(input.tokens.size());
    start_ = input.hit > 0 ? input.hit - c_.window : 0;
    const int64_t kept = input.decoder_trims ? input.prompt_tokens - c_.window : 0;
    keep_ = std::max({kept, start_, int64_t{0}});
    rows_.resize(static_cast<size_t>(n_));
    const config::PageLayout& layout = model.page_layout();
    const int64_t pages = (n_ + layout.block_size - 1) / layout.block_size;
    slab_.assign(static_cast<size_t>(pages * layout.page_bytes) + kSlack, 0xFF);
    std::copy(input.adopted.begin(), input.adopted.end(), slab_.begin());
    for (int64_t p = 0; p < pages; ++p) page_table_.push_back(static_cast<int32_t>(p));
    staging_.assign(static_cast<size_t>((n_ - start_) * model.slot_layout().row_stride), 0xFF);
  }

  DenseOutput Run() {
    for (int64_t i = start_; i < n_; ++i) Embed(i);
    const int64_t seam = c_.last_kv_source();
    for (int64_t l = 0; l < c_.num_layers; ++l) {
      const model::LayerWeights& layer = model_.weights().layers[static_cast<size_t>(l)];
      const int64_t produced = l <= seam ? start_ : keep_, attended = l < seam ? start_ : keep_;
      for (int64_t i = produced; i < n_; ++i) Produce(layer, i, produced);
      if (layer.compressor) WriteEntries(layer);
      for (int64_t i = attended; i < n_; ++i) Finish(layer, i, produced);
    }
    DenseOutput output;
    for (int64_t i = keep_; i < n_; ++i) {
      Collapse(i, model_.weights().norm);
      Floats row(static_cast<size_t>(c_.vocab_size));
      ops::LogitsParams p;
      p.rows = 1;
      p.x = At(i).in.data();
      p.head = model_.weights().head;
      p.logits = row.data();
      ops::LogitsReference(p, pool_);
      output.logits[i] = std::move(row);
    }
    output.pages.assign(slab_.begin(), slab_.end() - kSlack);
    return output;
  }

 private:
  Row& At(int64_t i) { return rows_[static_cast<size_t>(i)]; }
  float eps() const { return static_cast<float>(c_.rms_norm_eps); }

  Floats Linear(const Floats& x, const ops::WeightView& w, bool round) {
    Floats y(static_cast<size_t>(w.out));
    ops::LinearReference({1, x.data(), w.in, w, y.data(), w.out, round}, pool_);
    return y;
  }
  Floats Rounded(const Floats& x) {
    Floats y(x);
    if (model_.rounds_activations()) {
      ops::RoundActivationsReference(x.data(), y.data(), 1, static_cast<int64_t>(x.size()), pool_);
    }
    return y;
  }
  Floats Rope(int64_t position, bool compressed) const {
    const auto freq = model_.inv_freq(compressed);
    Floats table(freq.size() * 2);
    ops::RopeTable(&position, 1, freq.data(), static_cast<int64_t>(freq.size()), table.data());
    return table;
  }

  void Embed(int64_t i) {
    Row& row = At(i);
    const int64_t d = c_.hidden_size;
    row.x.resize(static_cast<size_t>(c_.stream_dim()));
    for (int64_t k = 0; k < c_.stream_dim(); ++k) {
      uint16_t code;
      std::memcpy(&code, model_.weights().embed + (in_.tokens[static_cast<size_t>(i)] * d + k % d) * 2, sizeof(code));
      row.x[static_cast<size_t>(k)] = numerics::Bf16ToFloat(code);
    }
    row.pre.assign(static_cast<size_t>(c_.hc_mult), 0.0f);
    row.pre[0] = 1;
  }

  void Collapse(int64_t i, const float* norm) {
    Row& row = At(i);
    row.in.resize(static_cast<size_t>(c_.hidden_size));
    ops::MhcCollapseParams p;
    p.rows = 1;
    p.streams = c_.hc_mult;
    p.hidden = c_.hidden_size;
    p.x = row.x.data();
    p.pre = row.pre.data();
    p.norm_weight = norm;
    p.rms_eps = eps();
    p.round_bf16 = round_;
    p.y = row.in.data();
    ops::MhcCollapseReference(p, pool_);
    row.in_q = Rounded(row.in);
  }

  void Inject(const model::LayerWeights& layer, int64_t i) {
    const engram::Hasher& hasher = *model_.hasher();
    std::vector<int64_t> indices(static_cast<size_t>(hasher.slots()));
    hasher.Rows(layer.plan.engram_slot, in_.tokens.data(), 0, i, indices.data());
    const ops::EngramTable& table = (*model_.engram_tables())[layer.plan.engram_slot];
    Floats gathered(indices.size() * static_cast<size_t>(table.dim));
    ops::EngramGatherReference({1, hasher.slots(), indices.data(), table, gathered.data()}, pool_);
    const Floats kv = Linear(Rounded(gathered), layer.engram->wkv, round_);
    ops::EngramInjectParams p;
    p.rows = 1;
    p.streams = c_.hc_mult;
    p.hidden = c_.hidden_size;
    p.kv = kv.data();
    p.q_weight = layer.engram->q_weight;
    p.k_weight = layer.engram->k_weight;
    p.rms_eps = eps();
    p.round_bf16 = round_;
    p.x = At(i).x.data();
    ops::EngramInjectReference(p, pool_);
  }

  // Row i's window row (row i - first of the staging), and its latents.
  void Produce(const model::LayerWeights& layer, int64_t i, int64_t first) {
    if (layer.engram) Inject(layer, i);
    Collapse(i, layer.attn_norm);
    const Floats kv = Linear(At(i).in_q, layer.wkv, round_), rope = Rope(i, layer.plan.compressed_rope);
    ops::WindowWriteParams p;
    p.rows = 1;
    p.dim = c_.head_dim;
    p.rope_dim = c_.rope_dim;
    p.kv = kv.data();
    p.norm_weight = layer.kv_norm;
    p.rms_eps = eps();
    p.rope = rope.data();
    p.round_bf16 = round_;
    p.row_stride = model_.slot_layout().row_stride;
    p.staging = staging_.data() + (i - first) * p.row_stride;
    ops::WindowWriteReference(p, pool_);
    if (!layer.compressor) return;
    const bool pairs = layer.plan.ratio == 2;
    latent_c_.resize(static_cast<size_t>(n_ * c_.head_dim));
    latent_z_.resize(latent_c_.size());
    const Floats c = Linear(At(i).in, layer.compressor->wkv, round_ && !pairs);
    std::copy(c.begin(), c.end(), latent_c_.begin() + i * c_.head_dim);
    if (!pairs) return;
    const Floats z = Linear(At(i).in, layer.compressor->wgate, false);
    std::copy(z.begin(), z.end(), latent_z_.begin() + i * c_.head_dim);
  }

  ops::EntryView Entries(int source) {
    const config::PageLayout& layout = model_.page_layout();
    const config::PageSource& s = layout.sources[static_cast<size_t>(source)];
    ops::EntryView view;
    view.slab = slab_.data();
    view.page_bytes = layout.page_bytes;
    view.entries_per_page = s.entries_per_page;
    view.entry_offset = s.entry_offset;
    view.entry_stride = layout.entry_stride;
    view.key_value_offset = s.key_value_offset;
    view.key_value_bytes = layout.key_value_bytes;
    view.key_scale_offset = s.key_scale_offset;
    view.key_scale_bytes = layout.key_scale_bytes;
    return view;
  }

  // Every entry that is complete and was not adopted.
  void WriteEntries(const model::LayerWeights& layer) {
    const int64_t ratio = layer.plan.ratio;
    ops::SequenceKv sequence;
    sequence.pages = page_table_.data();
    for (int64_t j = in_.hit / ratio; (j + 1) * ratio <= n_; ++j) {
      ops::LatentRef latent;
      latent.entry = j;
      latent.row = (j + 1) * ratio - 1;
      latent.row_prev = ratio == 2 ? latent.row - 1 : -1;
      Floats pooled(static_cast<size_t>(c_.head_dim));
      ops::CompressParams p;
      p.count = 1;
      p.latents = &latent;
      p.ratio = static_cast<int>(ratio);
      p.dim = c_.head_dim;
      p.c = latent_c_.data();
      p.z = ratio == 2 ? latent_z_.data() : nullptr;
      p.sequences = &sequence;
      p.norm_weight = layer.compressor->norm;
      p.rms_eps = eps();
      p.round_bf16 = round_;
      p.out = pooled.data();
      ops::CompressReference(p, pool_);
      const Floats key = Linear(pooled, layer.compressor->wk, round_), rope = Rope(j * ratio, true);
      ops::KeyWriteParams k;
      k.count = 1;
      k.latents = &latent;
      k.dim = c_.index_dim;
      k.rope_dim = c_.rope_dim;
      k.k = key.data();
      k.norm_weight = layer.compressor->k_norm;
      k.rms_eps = eps();
      k.rope = rope.data();
      k.round_bf16 = round_;
      k.sequences = &sequence;
      k.entries = Entries(layer.plan.kv_source_slot);
      ops::KeyWriteReference(k, pool_);
      ops::EntryWriteParams e;
      e.count = 1;
      e.latents = &latent;
      e.dim = c_.head_dim;
      e.rope_dim = c_.rope_dim;
      e.latent = pooled.data();
      e.rope = rope.data();
      e.round_bf16 = round_;
      e.sequences = &sequence;
      e.entries = k.entries;
      ops::EntryWriteReference(e, pool_);
    }
  }

  void Select(const model::LayerWeights& layer, int64_t i, const Floats& qr_q, const ops::RowBatch& batch) {
    Row& row = At(i);
    const Floats q = Linear(qr_q, layer.indexer->wq_b, round_), rope = Rope(i, true);
    std::vector<uint8_t> values(static_cast<size_t>(c_.index_heads * numerics::IndexKeyValueBytes(c_.index_dim)));
    std::vector<uint8_t> scales(static_cast<size_t>(c_.index_heads * numerics::IndexKeyScaleBytes(c_.index_dim)));
    ops::IndexQueryReference(
        {1, c_.index_heads, c_.index_dim, c_.rope_dim, q.data(), rope.data(), round_, values.data(), scales.data()},
        pool_);
    Floats weights = Linear(row.in, layer.indexer->weights_proj, round_);
    const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c_.index_dim * c_.index_heads)));
    for (float& w : weights) w *= scale;
    const int64_t visible = (i + 1) / layer.plan.ratio;
    std::vector<int32_t> selected(static_cast<size_t>(c_.index_topk)),
        published(static_cast<size_t>(c_.candidate_blocks));
    int32_t count = 0, published_count = 0;
    auto candidates = static_cast<int32_t>(row.candidates.size());
    ops::SelectParams s;
    s.score = {batch,
               c_.index_heads,
               c_.index_dim,
               values.data(),
               scales.data(),
               weights.data(),
               Entries(layer.plan.kv_source_slot)};
    s.topk = c_.index_topk;
    s.visible = &visible;
    if (layer.plan.restricted_to_candidates) {
      s.candidates = row.candidates.data();
      s.candidate_count = &candidates;
    }
    if (layer.plan.candidate_source) {
      s.candidates_out = published.data();
      s.candidate_count_out = &published_count;
    }
    s.candidate_blocks = c_.candidate_blocks;
    s.candidate_block_size = c_.candidate_block_size;
    s.candidate_stride = c_.candidate_blocks;
    s.selected = selected.data();
    s.selected_count = &count;
    s.selected_stride = c_.index_topk;
    ops::SelectReference(s, pool_);
    row.selected.assign(selected.begin(), selected.begin() + count);
    if (layer.plan.candidate_source) row.candidates.assign(published.begin(), published.begin() + published_count);
  }

  // Attention and experts of row i. The layer's window rows begin at position `first`.
  void Finish(const model::LayerWeights& layer, int64_t i, int64_t first) {
    Row& row = At(i);
    Floats post, comb;
    Floats pre = Mix(layer.attn_site, row, &post, &comb);
    Floats qr = Linear(row.in_q, layer.wq_a, round_);
    ops::RmsNormReference({1, c_.q_lora_rank, qr.data(), layer.q_norm, eps(), qr.data(), round_}, pool_);
    const Floats qr_q = Rounded(qr), q = Linear(qr_q, layer.wq_b, round_);

    // The mask: positions [from, i].
    const int64_t from = std::max(i - c_.window + 1, first), position = i;
    const int32_t sequence = 0;
    const ops::SequenceKv kv{page_table_.data(), nullptr, first, 0};
    const ops::RowBatch batch{1, &position, &sequence, &from, &kv, 1};
    if (layer.indexer) Select(layer, i, qr_q, batch);
    Floats attended(static_cast<size_t>(c_.num_heads * c_.head_dim));
    const Floats rope = Rope(i, layer.plan.compressed_rope);
    const auto count = static_cast<int32_t>(row.selected.size());
    ops::AttentionParams a;
    a.rows = batch;
    a.heads = c_.num_heads;
    a.dim = c_.head_dim;
    a.rope_dim = c_.rope_dim;
    a.q = q.data();
    a.rope = rope.data();
    a.sink = layer.sink;
    a.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c_.head_dim)));
    a.round_bf16 = round_;
    a.window = {0, 1, model_.slot_layout().row_stride, staging_.data()};
    if (layer.plan.ratio > 0) {
      a.selected = row.selected.data();
      a.selected_count = &count;
      a.selected_stride = c_.index_topk;
      a.entries = Entries(layer.plan.kv_source_slot);
    }
    a.out = attended.data();
    ops::AttentionReference(a, pool_);
    Floats u(static_cast<size_t>(c_.o_groups * c_.o_lora_rank)), y(static_cast<size_t>(c_.hidden_size));
    ops::OutputProjParams o;
    o.rows = 1;
    o.groups = c_.o_groups;
    o.o = attended.data();
    o.wo_a = layer.wo_a;
    o.wo_b = layer.wo_b;
    o.u = u.data();
    o.y = y.data();
    o.round_bf16 = round_;
    o.round_activations = model_.rounds_activations();
    ops::OutputProjReference(o, pool_);
    Expand(row, y, post, comb);
    row.pre = pre;

    pre = Mix(layer.ffn_site, row, &post, &comb);
    Collapse(i, layer.ffn_norm);
    Expand(row, Experts(layer, row), post, comb);
    row.pre = pre;
  }

  Floats Experts(const model::LayerWeights& layer, const Row& row) {
    Floats scores(static_cast<size_t>(c_.num_experts)), weights(static_cast<size_t>(c_.experts_per_token));
    std::vector<int32_t> ids(weights.size()), begin(static_cast<size_t>(c_.num_experts + 1)), pairs(weights.size());
    ops::RouterParams r;
    r.rows = 1;
    r.num_experts = c_.num_experts;
    r.topk = c_.experts_per_token;
    r.x = row.in.data();
    r.gate = layer.gate;
    r.bias = layer.bias;
    r.bias_vl = layer.bias_vl;
    r.temperature = static_cast<float>(c_.gate_temperature);
    r.scaling = static_cast<float>(c_.routed_scaling_factor);
    r.normalise = c_.norm_topk_prob;
    r.scores = scores.data();
    r.ids = ids.data();
    r.weights = weights.data();
    ops::RouterReference(r, pool_);
    const ops::DispatchLists lists{begin.data(), pairs.data()};
    ops::MakeDispatchLists(ids.data(), 1, r.topk, r.num_experts, lists);
    Floats y(static_cast<size_t>(c_.hidden_size));
    Floats scratch(static_cast<size_t>(
        ops::ExpertsScratchFloats(1, r.topk, c_.hidden_size, c_.moe_intermediate_size, c_.shared_intermediate())));
    ops::ExpertsParams e;
    e.rows = 1;
    e.hidden = c_.hidden_size;
    e.inter = c_.moe_intermediate_size;
    e.shared_inter = c_.shared_intermediate();
    e.num_experts = c_.num_experts;
    e.topk = c_.experts_per_token;
    e.x = row.in_q.data();
    e.experts = layer.experts.data();
    e.shared = layer.shared;
    e.route_weights = weights.data();
    e.dispatch = lists;
    e.swiglu_limit = static_cast<float>(c_.swiglu_limit);
    e.round_bf16 = round_;
    e.round_activations = model_.rounds_activations();
    e.scratch = scratch.data();
    e.y = y.data();
    ops::ExpertsReference(e, pool_);
    return y;
  }

  Floats Mix(const model::MhcWeights& site, const Row& row, Floats* post, Floats* comb) {
    const auto hc = static_cast<size_t>(c_.hc_mult);
    Floats mixes(static_cast<size_t>(c_.mix_rows())), pre(hc);
    post->resize(hc);
    comb->resize(hc * hc);
    ops::MhcMixParams p;
    p.rows = 1;
    p.streams = c_.hc_mult;
    p.hidden = c_.hidden_size;
    p.x = row.x.data();
    p.fn = site.fn;
    p.base = site.base;
    p.scale = site.scale;
    p.rms_eps = eps();
    p.hc_eps = static_cast<float>(c_.hc_eps);
    p.sinkhorn_iters = c_.hc_iters;
    p.mixes = mixes.data();
    p.pre = pre.data();
    p.post = post->data();
    p.comb = comb->data();
    ops::MhcMixReference(p, pool_);
    return pre;
  }

  void Expand(Row& row, const Floats& y, const Floats& post, const Floats& comb) {
    ops::MhcExpandParams p;
    p.rows = 1;
    p.streams = c_.hc_mult;
    p.hidden = c_.hidden_size;
    p.y = y.data();
    p.post = post.data();
    p.comb = comb.data();
    p.round_bf16 = round_;
    p.x = row.x.data();
    ops::MhcExpandReference(p, pool_);
  }

  const model::Model& model_;
  const config::ModelConfig& c_;
  const DenseInput& in_;
  ThreadPool pool_;
  bool round_;
  int64_t n_ = 0, start_ = 0, keep_ = 0;  // rows that run: [start_, n_), in the decoder pass [keep_, n_)
  std::vector<Row> rows_;
  std::vector<uint8_t> slab_, staging_;
  std::vector<int32_t> page_table_;
  Floats latent_c_, latent_z_;  // of this layer's source [n, d]
};

}  // namespace

DenseOutput RunDense(const model::Model& model, const DenseInput& input) { return Dense(model, input).Run(); }

}  // namespace senko::runtime
