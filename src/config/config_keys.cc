#include "config/config_keys.h"

#include <algorithm>
#include <iterator>
#include <optional>

namespace senko::config {
namespace {

// One canonical name per meaning: "<section>.<word of the released file>".
struct KnownKey {
  std::string_view canonical;
  std::string_view flat;  // its word at the top level (the inference spelling); empty: the same word
};

// A flat word with a dot: the setting has no place at the top level.
constexpr KnownKey kKnownKeys[] = {
    {"text.vocab_size", ""},
    {"text.hidden_size", "dim"},
    {"text.num_hidden_layers", "n_layers"},
    {"text.num_attention_heads", "n_heads"},
    {"text.num_key_value_heads", ""},
    {"text.head_dim", ""},
    {"text.qk_rope_head_dim", "rope_head_dim"},
    {"text.q_lora_rank", ""},
    {"text.o_lora_rank", ""},
    {"text.o_groups", ""},
    {"text.hidden_act", ""},
    {"text.swiglu_limit", ""},
    {"text.rms_norm_eps", "norm_eps"},
    {"text.attention_bias", ""},
    {"text.max_position_embeddings", "max_seq_len"},
    {"text.rope_theta", ""},
    {"text.compress_rope_theta", ""},
    {"text.n_routed_experts", ""},
    {"text.n_shared_experts", ""},
    {"text.num_experts_per_tok", "n_activated_experts"},
    {"text.moe_intermediate_size", "moe_inter_dim"},
    {"text.scoring_func", "score_func"},
    {"text.topk_method", ""},
    {"text.norm_topk_prob", ""},
    {"text.routed_scaling_factor", "route_scale"},
    {"text.gate_temp", ""},
    {"text.sliding_window", "window_size"},
    {"text.compress_ratios", ""},
    {"text.kv_source_layer_ids", "kv_source_layers"},
    {"text.index_source_layer_ids", "index_source_layers"},
    {"text.index_n_heads", ""},
    {"text.index_head_dim", ""},
    {"text.index_topk", ""},
    {"text.candidate_source_layer_id", "candidate_source_layer"},
    {"text.candidate_topk_blocks", ""},
    {"text.candidate_block_size", ""},
    {"text.hc_mult", ""},
    {"text.hc_sinkhorn_iters", ""},
    {"text.hc_eps", ""},
    {"text.engram_layer_ids", ""},
    {"text.engram_num_embeddings", ""},
    {"text.engram_max_ngram_size", ""},
    {"text.engram_vocab_size", ""},
    {"text.engram_n_heads", ""},
    {"text.engram_head_dim", ""},
    {"text.engram_pad_token_id", "engram_pad_id"},
    {"text.engram_compressed_vocab_size", ""},
    {"text.num_nextn_predict_layers", "n_mtp_layers"},
    {"text.dspark_block_size", ""},
    {"text.dspark_noise_token_id", ""},
    {"text.dspark_target_layer_ids", ""},
    {"text.dspark_markov_rank", ""},
    {"text.dspark_n_routed_experts", ""},
    {"text.dspark_num_experts_per_tok", "dspark_n_activated_experts"},
    {"text.n_group", ""},
    {"text.topk_group", ""},
    {"text.num_hash_layers", ""},
    {"text.tie_word_embeddings", ""},
    {"text.model_type", "text.model_type"},
    {"top.model_type", "model_type"},
    {"top.image_token_id", ""},
    {"top.bos_token_id", ""},
    {"top.eos_token_id", ""},
    {"top.pad_token_id", ""},
    {"rope.rope_type", "rope.rope_type"},
    {"rope.type", "rope.type"},
    {"rope.original_max_position_embeddings", "original_seq_len"},
    {"rope.factor", "rope_factor"},
    {"rope.beta_fast", "beta_fast"},
    {"rope.beta_slow", "beta_slow"},
    {"quant.expert_dtype", "expert_dtype"},
    {"quant.scale_fmt", "scale_fmt"},
    {"quant.quant_method", "quant.quant_method"},
    {"quant.activation_scheme", "quant.activation_scheme"},
    {"quant.weight_block_size", "quant.weight_block_size"},
    {"vision.model_type", "vision.model_type"},
    {"vision.num_hidden_layers", "vision_n_layers"},
    {"vision.hidden_size", "vision_dim"},
    {"vision.num_attention_heads", "vision_n_heads"},
    {"vision.intermediate_size", "vision_inter_dim"},
    {"vision.patch_size", "vision_patch_size"},
    {"vision.rope_theta", "vision_rope_theta"},
    {"vision.downsample_ratio", "vision_downsample_ratio"},
    {"vision.max_image_tokens", "vision_max_n_token"},
    {"vision.min_pixels", "vision_min_pixels"},
    {"vision.max_wh_ratio", "vision_max_wh_ratio"},
};

constexpr std::string_view kIgnoredAnywhere[] = {"_name_or_path",
                                                 "architectures",
                                                 "attention_dropout",
                                                 "auto_map",
                                                 "dtype",
                                                 "id2label",
                                                 "label2id",
                                                 "initializer_range",
                                                 "max_batch_size",
                                                 "output_attentions",
                                                 "return_dict",
                                                 "torch_dtype",
                                                 "output_hidden_states",
                                                 "output_router_logits",
                                                 "problem_type",
                                                 "temperature",
                                                 "use_cache",
                                                 "router_aux_loss_coef",
                                                 "router_jitter_noise",
                                                 "transformers_version"};

std::string_view PrefixOf(Section section) {
  switch (section) {
    case Section::kTop:
      return "top.";
    case Section::kText:
      return "text.";
    case Section::kVision:
      return "vision.";
    case Section::kRope:
      return "rope.";
    case Section::kQuantization:
      return "quant.";
  }
  return "";
}

std::optional<Section> NestedSection(Section section, std::string_view key) {
  const bool top = section == Section::kTop;
  if ((top || section == Section::kText) && key == "rope_scaling") return Section::kRope;
  if (top && key == "text_config") return Section::kText;
  if (top && key == "vision_config") return Section::kVision;
  if (top && key == "quantization_config") return Section::kQuantization;
  return std::nullopt;
}

bool Matches(const KnownKey& known, Section section, std::string_view key) {
  const std::string_view prefix = PrefixOf(section);
  const size_t dot = known.canonical.find('.');
  const std::string_view word = known.canonical.substr(dot + 1);
  if (known.canonical.starts_with(prefix) && word == key) return true;
  // Token ids may stand inside text_config; text settings may stand at the top, under either word.
  if (section == Section::kText) return known.canonical.starts_with("top.") && known.flat.empty() && word == key;
  if (section != Section::kTop || known.flat.find('.') != std::string_view::npos) return false;
  if (!known.flat.empty() && known.flat == key) return true;
  return known.canonical.starts_with("text.") && word == key;
}

}  // namespace

KeyMeaning LookUpKey(Section section, std::string_view key) {
  if (const auto nested = NestedSection(section, key)) return {KeyMeaning::kSection, {}, *nested};
  for (const KnownKey& known : kKnownKeys) {
    if (Matches(known, section, key)) return {KeyMeaning::kValue, known.canonical, section};
  }
  const auto* end = std::end(kIgnoredAnywhere);
  if (std::find(std::begin(kIgnoredAnywhere), end, key) != end) return {KeyMeaning::kIgnored, {}, section};
  return {};
}

}  // namespace senko::config
