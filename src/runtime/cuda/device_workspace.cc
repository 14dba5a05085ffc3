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
  const auto f32 = [&](int64_t count) { return arena.Take<float>(static_cast<size_t>(count)); };
  const auto i32 = [&](int64_t count) { return arena.Take<int32_t>(static_cast<size_t>(count)); };
  const auto u8 = [&](int64_t count) { return arena.Take<uint8_t>(static_cast<size_t>(count)); };
  const bool indexes = !c.index_sources.empty();
  const int64_t topk = c.experts_per_token, hc = c.hc_mult;

  encoder_pre = f32(n * hc);
  decoder_pre = f32(n * hc);
  post = f32(n * hc);
  comb = f32(n * hc * hc);
  mix_scratch = f32(static_cast<int64_t>(ops::MhcMixScratchFloats(hidden, n)));

  const int64_t sources = indexes ? n : 0;
  compressor_cz = f32(sources * 2 * d);
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
  expert_scratch =
      arena.Take<uint8_t>(ops::ExpertsScratchBytes(hidden, c.moe_intermediate_size, c.shared_intermediate()));

  const int64_t engram_columns = (c.engram.max_ngram - 1) * c.engram.num_heads * c.engram.head_dim;
  for (size_t i = 0; i < c.engram.layers.size(); ++i) {
    engram_in.push_back(arena.Take<__nv_bfloat16>(static_cast<size_t>(n * engram_columns)));
  }

  staging_stride = static_cast<size_t>(n * model.slot_layout().row_stride + 255) / 256 * 256;
  staging = arena.Take<uint8_t>(staging_stride * static_cast<size_t>(c.num_layers));
  logits = f32(limits.max_drawn_rows * c.vocab_size);
}

template <typename Value>
BasicDeviceWorkspace<Value>::BasicDeviceWorkspace(const model::Model& model, const DeviceWorkspaceLimits& given,
                                                  DeviceArena& arena)
    : DeviceWorkspace(model, given, arena) {
  const config::ModelConfig& c = model.config();
  const int64_t n = limits.max_rows, d = c.head_dim, hidden = c.hidden_size;
  const auto values = [&](int64_t count) { return arena.Take<Value>(static_cast<size_t>(count)); };
  const bool indexes = !c.index_sources.empty();
  const int64_t inner = c.num_heads * d, topk = c.experts_per_token, sources = indexes ? n : 0;
  encoder_streams = values(n * c.stream_dim());
  decoder_streams = values(n * c.stream_dim());
  x = values(n * hidden);
  xq = sizeof(Value) == 2 ? values(n * hidden) : x;
  latents = values(n * (c.q_lora_rank + d));
  qrq = values(n * c.q_lora_rank);
  q = values(n * inner);
  o = values(n * inner);
  u = values(n * c.o_groups * c.o_lora_rank);
  y = values(n * hidden);
  slots = values(n * (topk + (c.num_shared_experts > 0)) * hidden);
  compressor_c = values(sources * d);
  latent = values(sources * d);
  key = values(sources * c.index_dim);
  index_q = values(indexes ? n * c.index_heads * c.index_dim : 0);
  index_w = values(indexes ? n * c.index_heads : 0);
  h = values(n * topk * c.moe_intermediate_size);
  shared_h = values(n * c.shared_intermediate());
  drawn_x = values(limits.max_drawn_rows * hidden);
  for (size_t i = 0; i < c.engram.layers.size(); ++i) engram_kv.push_back(values(n * (c.hc_mult + 1) * hidden));
}

std::unique_ptr<DeviceWorkspace> MakeDeviceWorkspace(const model::Model& model, const DeviceWorkspaceLimits& limits,
                                                     DeviceArena& arena) {
  if (model.rounds_to_bf16()) return std::make_unique<BasicDeviceWorkspace<__nv_bfloat16>>(model, limits, arena);
  return std::make_unique<BasicDeviceWorkspace<float>>(model, limits, arena);
}

}  // namespace senko::runtime
