#include "bench/step_bytes.h"

#include <algorithm>
#include <cmath>

#include "config/layer_schedule.h"

namespace senko::bench {
namespace {

double D(int64_t value) { return static_cast<double>(value); }

double Bytes(const ops::ExpertWeights& e) { return D(e.w1.bytes() + e.w3.bytes() + e.w2.bytes()); }

// Bytes of one window row, entry and index key in the released formats.
double WindowRow(const config::ModelConfig& c) { return D(c.head_dim + c.head_dim / 32); }
double Entry(const config::ModelConfig& c) { return D(c.head_dim / 2 + c.head_dim / 16); }
double Key(const config::ModelConfig& c) { return D(c.index_dim / 2 + c.index_dim / 32); }

constexpr double kBf16 = 2;

}  // namespace

double ExpectedExperts(int64_t experts, int64_t topk, int64_t rows) {
  return D(experts) * (1 - std::pow(1 - D(topk) / D(experts), D(rows)));
}

double WeightBytes(const model::Model& model, int64_t rows) {
  const config::ModelConfig& c = model.config();
  const model::Weights& weights = model.weights();
  const double none = D(weights.ActiveBytes(0)), one = D(weights.ActiveBytes(1)) - none;
  return none - D(weights.head.bytes()) + one * ExpectedExperts(c.num_experts, c.experts_per_token, rows);
}

double KvBytes(const config::ModelConfig& config, int64_t position) {
  double bytes = D(std::min(position + 1, config.window)) * WindowRow(config) * D(config.num_layers);
  for (const auto& plan : config::MakeLayerSchedule(config)) {
    if (plan.ratio == 0) continue;
    const int64_t entries = (position + 1) / plan.ratio;
    bytes += D(std::min(entries, config.index_topk)) * Entry(config);
    if (plan.indexes && entries > config.index_topk) {
      const int64_t scored = plan.restricted_to_candidates
                                 ? std::min(entries, config.candidate_blocks * config.candidate_block_size)
                                 : entries;
      bytes += D(scored) * Key(config);
    }
  }
  return bytes;
}

std::map<std::string, double> StepBytes(const model::Model& model, const StepShape& shape) {
  const config::ModelConfig& c = model.config();
  const double rows = D(shape.total_rows()), hidden = D(c.hidden_size), streams = D(c.stream_dim());
  const double heads = D(c.num_heads * c.head_dim), topk = D(c.experts_per_token), inter = D(c.moe_intermediate_size);
  const double latents = D(c.q_lora_rank + c.head_dim);
  std::map<std::string, double> ops;
  const auto seam = [&](double slots) { ops["seam"] += kBf16 * rows * (2 * streams + slots * hidden + 2 * hidden); };
  for (const model::LayerWeights& w : model.weights().layers) {
    const bool first = w.plan.layer == 0, shared = c.num_shared_experts > 0;
    seam(first ? 0 : topk + (shared ? 1 : 0));
    seam(1);
    ops["mix"] += D(w.attn_site.fn.bytes() + w.ffn_site.fn.bytes()) + 2 * kBf16 * rows * streams;
    ops["latents"] += D(w.wq_a.bytes() + w.wkv.bytes()) + kBf16 * rows * (hidden + latents);
    ops["latent_norms"] += kBf16 * rows * (latents + D(c.q_lora_rank)) + rows * WindowRow(c);
    ops["wq_b"] += D(w.wq_b.bytes()) + kBf16 * rows * (D(c.q_lora_rank) + heads);
    ops["output_proj"] += D(w.wo_a.bytes() + w.wo_b.bytes()) + kBf16 * rows * (heads + hidden);
    ops["router"] += D(w.gate.bytes()) + kBf16 * rows * hidden;
    ops["experts"] +=
        ExpectedExperts(c.num_experts, c.experts_per_token, shape.total_rows()) * Bytes(w.experts.front()) +
        kBf16 * rows * (hidden + topk * (2 * inter + hidden));
    if (shared) {
      ops["shared_expert"] += Bytes(w.shared) + kBf16 * rows * 2 * (hidden + D(c.shared_intermediate()));
    }
    if (w.engram) {
      ops["engram_wkv"] += D(w.engram->wkv.bytes()) + kBf16 * rows * D(w.engram->wkv.in + w.engram->wkv.out);
      ops["engram_inject"] += kBf16 * rows * (D(w.engram->wkv.out) + 2 * streams);
    }
    if (w.compressor) {
      const double out = D(c.head_dim) * (w.plan.ratio == 2 ? 2 * sizeof(float) : kBf16);
      ops["compressor"] += D(w.compressor->wkv.bytes() + w.compressor->wgate.bytes()) + rows * (kBf16 * hidden + out);
      ops["index_keys"] += D(w.compressor->wk.bytes()) + kBf16 * rows * D(c.head_dim + c.index_dim);
    }
    const int64_t length = shape.context + shape.rows;
    ops["attention"] += D(shape.batch * std::min(length, c.window)) * WindowRow(c) + 2 * kBf16 * rows * heads;
    if (w.plan.ratio == 0) continue;
    // Entries of the prompt are the same for all; each sequence has some of its own behind it.
    const int64_t entries = shape.context / w.plan.ratio + shape.batch * (shape.rows / w.plan.ratio);
    const int64_t visible = length / w.plan.ratio;
    ops["attention"] += std::min(rows * D(std::min(visible, c.index_topk)), D(entries)) * Entry(c);
    if (!w.indexer) continue;
    ops["index_query"] += D(w.indexer->wq_b.bytes() + w.indexer->weights_proj.bytes()) +
                          kBf16 * rows * (D(c.q_lora_rank) + hidden + D(c.index_heads * c.index_dim));
    if (visible <= c.index_topk) continue;  // nothing to choose
    const int64_t scored =
        w.plan.restricted_to_candidates ? std::min(visible, c.candidate_blocks * c.candidate_block_size) : visible;
    ops["select"] += std::min(rows * D(scored), D(entries)) * Key(c);
  }
  seam(topk + (c.num_shared_experts > 0 ? 1 : 0));
  return ops;
}

}  // namespace senko::bench
