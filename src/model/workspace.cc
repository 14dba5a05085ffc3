#include "model/workspace.h"

#include <algorithm>

#include "numerics/packed_rows.h"
#include "ops/experts/experts.h"

namespace senko::model {
namespace {

template <typename T>
Buffer<T> Make(int64_t rows, int64_t width) {
  return Buffer<T>(static_cast<size_t>(rows * width));
}

bool HasRatio(const config::ModelConfig& c, int ratio) {
  return std::any_of(c.kv_sources.begin(), c.kv_sources.end(),
                     [&](int64_t l) { return c.ratios[static_cast<size_t>(l)] == ratio; });
}

}  // namespace

Workspace::Workspace(const config::ModelConfig& config, const WorkspaceLimits& l)
    : limits(l),
      encoder(l.max_rows, l.max_sequences, config.rope_dim / 2),
      decoder(l.max_rows, l.max_sequences, config.rope_dim / 2),
      latents1(1, HasRatio(config, 1) ? l.max_rows : 0, config.rope_dim / 2),
      latents2(2, HasRatio(config, 2) ? l.max_rows : 0, config.rope_dim / 2) {
  const int64_t r = l.max_rows;
  const bool indexed = !config.kv_sources.empty();
  const int64_t stage = indexed ? r : 0;
  stream = Make<float>(r, config.stream_dim());
  pre = Make<float>(r, config.hc_mult);
  pre_next = Make<float>(r, config.hc_mult);
  post = Make<float>(r, config.hc_mult);
  comb = Make<float>(r, config.hc_mult * config.hc_mult);
  mixes = Make<float>(r, config.mix_rows());
  x = Make<float>(r, config.hidden_size);
  xq = Make<float>(r, config.hidden_size);
  y = Make<float>(r, config.hidden_size);
  qr = Make<float>(r, config.q_lora_rank);
  qrq = Make<float>(r, config.q_lora_rank);
  q = Make<float>(r, config.num_heads * config.head_dim);
  o = Make<float>(r, config.num_heads * config.head_dim);
  kv = Make<float>(r, config.head_dim);
  c = Make<float>(stage, config.head_dim);
  z = Make<float>(HasRatio(config, 2) ? r : 0, config.head_dim);
  latent = Make<float>(stage, config.head_dim);
  key = Make<float>(stage, config.index_dim);
  index_q = Make<float>(stage, config.index_heads * config.index_dim);
  index_q_values = Make<uint8_t>(stage, config.index_heads * numerics::IndexKeyValueBytes(config.index_dim));
  index_q_scales = Make<uint8_t>(stage, config.index_heads * numerics::IndexKeyScaleBytes(config.index_dim));
  index_w = Make<float>(stage, config.index_heads);
  selected = Make<int32_t>(stage, config.index_topk);
  selected_count = Make<int32_t>(stage, 1);
  candidates = Make<int32_t>(config.candidate_source >= 0 ? r : 0, config.candidate_blocks);
  candidate_count = Make<int32_t>(r, 1);
  visible = Make<int64_t>(r, 1);
  u = Make<float>(r, config.o_groups * config.o_lora_rank);
  scores = Make<float>(r, config.num_experts);
  route_ids = Make<int32_t>(r, config.experts_per_token);
  route_weights = Make<float>(r, config.experts_per_token);
  expert_begin = Buffer<int32_t>(static_cast<size_t>(config.num_experts + 1));
  pairs = Make<int32_t>(r, config.experts_per_token);
  experts = Buffer<float>(static_cast<size_t>(ops::ExpertsScratchFloats(
      r, config.experts_per_token, config.hidden_size, config.moe_intermediate_size, config.shared_intermediate())));
  if (!config.engram.layers.empty()) {
    const int64_t slots = (config.engram.max_ngram - 1) * config.engram.num_heads;
    engram_rows = Make<int64_t>(r, slots);
    engram_in = Make<float>(r, slots * config.engram.head_dim);
    engram_kv = Make<float>(r, (config.hc_mult + 1) * config.hidden_size);
  }
  staging = Make<uint8_t>(r, numerics::WindowRowStride(config.head_dim));
  seam_staging = Make<uint8_t>(stage, numerics::WindowRowStride(config.head_dim));
}

int64_t Workspace::bytes() const {
  size_t total = 0;
  for (const auto* b : {&stream,    &pre,      &pre_next, &post,   &comb,          &mixes,
                        &x,         &xq,       &y,        &qr,     &qrq,           &q,
                        &o,         &kv,       &c,        &z,      &latent,        &key,
                        &index_q,   &index_w,  &u,        &scores, &route_weights, &experts,
                        &engram_in, &engram_kv}) {
    total += b->bytes();
  }
  for (const auto* b : {&selected, &selected_count, &candidates, &candidate_count, &route_ids, &expert_begin, &pairs}) {
    total += b->bytes();
  }
  for (const auto* b : {&index_q_values, &index_q_scales, &staging, &seam_staging}) total += b->bytes();
  for (const auto* b : {&visible, &engram_rows}) total += b->bytes();
  return static_cast<int64_t>(total) + encoder.bytes() + decoder.bytes() + latents1.bytes() + latents2.bytes();
}

}  // namespace senko::model
