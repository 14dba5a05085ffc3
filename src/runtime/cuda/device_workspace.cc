#include "runtime/cuda/device_workspace.h"

#include <algorithm>

#include "ops/experts/experts_sm90.h"
#include "ops/mhc/mhc_sm90.h"
#include "ops/router/router_sm90.h"
#include "ops/select/select_sm90.h"

namespace senko::runtime {

DeviceWorkspace::DeviceWorkspace(const model::Model& model, const DeviceWorkspaceLimits& given, DeviceArena& arena)
    : limits(given) {
  const config::ModelConfig& c = model.config();
  const int64_t n = limits.max_rows, d = c.head_dim, hidden = c.hidden_size;
  const auto bf16 = [&](int64_t count) { return arena.Take<__nv_bfloat16>(static_cast<size_t>(count)); };
  const auto f32 = [&](int64_t count) { return arena.Take<float>(static_cast<size_t>(count)); };
  const auto i32 = [&](int64_t count) { return arena.Take<int32_t>(static_cast<size_t>(count)); };
  const auto u8 = [&](int64_t count) { return arena.Take<uint8_t>(static_cast<size_t>(count)); };
  const bool indexes = !c.index_sources.empty();
  const int64_t inner = c.num_heads * d, topk = c.experts_per_token;

  encoder_streams = bf16(n * c.stream_dim());
  decoder_streams = bf16(n * c.stream_dim());
  encoder_pre = f32(n * ops::kMhcStreams);
  decoder_pre = f32(n * ops::kMhcStreams);
  post = f32(n * ops::kMhcStreams);
  comb = f32(n * ops::kMhcStreams * ops::kMhcStreams);
  mix_scratch = f32(static_cast<int64_t>(ops::MhcMixScratchFloats(hidden, n)));
  x = bf16(n * hidden);
  xq = bf16(n * hidden);
  latents = bf16(n * (c.q_lora_rank + d));
  qrq = bf16(n * c.q_lora_rank);
  q = bf16(n * inner);
  o = bf16(n * inner);
  u = bf16(n * c.o_groups * c.o_lora_rank);
  y = bf16(n * hidden);
  slots = bf16(n * (topk + (c.num_shared_experts > 0)) * hidden);

  const int64_t sources = indexes ? n : 0;
  compressor_c = bf16(sources * d);
  compressor_cz = f32(sources * 2 * d);
  latent = bf16(sources * d);
  key = bf16(sources * c.index_dim);
  index_q = bf16(indexes ? n * c.index_heads * c.index_dim : 0);
  index_w = bf16(indexes ? n * c.index_heads : 0);
  index_values = u8(indexes ? n * c.index_heads * c.index_dim / 2 : 0);
  index_scales = u8(indexes ? n * c.index_heads * c.index_dim / 32 : 0);
  index_weights = f32(indexes ? n * c.index_heads : 0);
  selected = i32(indexes ? n * c.index_topk : 0);
  selected_count = i32(indexes ? n : 0);
  const bool candidates_used = c.candidate_source >= 0;
  candidates = i32(candidates_used ? n * c.candidate_blocks : 0);
  candidate_count = i32(candidates_used ? n : 0);
  if (indexes) {
    select_scratch_bytes = ops::SelectScratchBytes(n, limits.max_positions, c.index_topk, c.candidate_blocks);
  }
  select_scratch = arena.Take<uint8_t>(select_scratch_bytes);

  scores = f32(static_cast<int64_t>(ops::RouterScratchFloats(c.num_experts, hidden, n)));
  route_ids = i32(n * topk);
  route_weights = f32(n * topk);
  expert_counts = i32(c.num_experts);
  pairs = i32(n * topk);
  items = arena.Take<ops::ExpertItem>(static_cast<size_t>(ops::MaxExpertItems(n, topk, c.num_experts, 8)));
  num_items = i32(1);
  h = bf16(n * topk * c.moe_intermediate_size);
  shared_h = bf16(n * c.shared_intermediate());
  expert_scratch =
      arena.Take<uint8_t>(ops::ExpertsScratchBytes(hidden, c.moe_intermediate_size, c.shared_intermediate()));

  const int64_t engram_columns = (c.engram.max_ngram - 1) * c.engram.num_heads * c.engram.head_dim;
  for (size_t i = 0; i < c.engram.layers.size(); ++i) {
    engram_in.push_back(bf16(n * engram_columns));
    engram_kv.push_back(bf16(n * (ops::kMhcStreams + 1) * hidden));
  }

  staging_stride = static_cast<size_t>(n * model.slot_layout().row_stride + 255) / 256 * 256;
  staging = arena.Take<uint8_t>(staging_stride * static_cast<size_t>(c.num_layers));
  logits = f32(limits.max_drawn_rows * c.vocab_size);
  drawn_x = bf16(limits.max_drawn_rows * hidden);
}

}  // namespace senko::runtime
