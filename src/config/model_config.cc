#include "config/model_config.h"

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "config/config_rules.h"
#include "config/config_values.h"

namespace senko::config {
namespace {

// The real file has 4 KiB. The bound also keeps the JSON library's key search, linear per object, short.
constexpr size_t kMaxConfigBytes = size_t{256} << 10;

// Upper bounds are far above any model of this family and small enough that no later product of sizes can
// leave int64: the largest, experts x 3 x inner x hidden, stays below 2^56.
constexpr int64_t kMaxLayers = 512;
constexpr int64_t kMaxDim = 1 << 16;
constexpr int64_t kMaxPositions = 1 << 24;  // float32 holds every position exactly

void ReadFixedChoices(ConfigValues* v) {
  v->Require("top.model_type", {"deepseek_v41", "deepseek_v4.1", "deepseek_v41_text"});
  v->Require("text.model_type", {"deepseek_v41_text", "deepseek_v4.1_text"});
  v->Require("vision.model_type", {"deepseek_v41_vision", "deepseek_v4.1_vision"});
  v->Require("text.num_key_value_heads", {1});
  v->Require("text.hidden_act", {"silu"});
  v->Require("text.attention_bias", {false});
  v->Require("text.scoring_func", {"sqrtsoftplus"});
  v->Require("text.topk_method", {"noaux_tc"});
  v->Require("text.tie_word_embeddings", {false});
  v->Require("text.n_group", {1, nullptr});
  v->Require("text.topk_group", {1, nullptr});
  v->Require("text.num_hash_layers", {0, nullptr});
  v->Require("rope.rope_type", {"yarn"});
  v->Require("rope.type", {"yarn"});
  v->Require("quant.quant_method", {"fp8"});
  v->Require("quant.activation_scheme", {"dynamic"});
  v->Require("quant.weight_block_size", {Json::array({32, 32})});
  v->Require("quant.scale_fmt", {"ue8m0"});
  v->Require("quant.expert_dtype", {"fp4"});
  v->Require("vision.max_wh_ratio", {nullptr});
}

void ReadAttention(ConfigValues* v, ModelConfig* c) {
  c->vocab_size = v->Int("text.vocab_size", 1, kMaxVocabSize);
  c->hidden_size = v->Int("text.hidden_size", 32, kMaxDim);
  c->num_layers = v->Int("text.num_hidden_layers", 1, kMaxLayers);
  c->num_heads = v->Int("text.num_attention_heads", 1, 1024);
  c->head_dim = v->Int("text.head_dim", 32, 4096);
  c->rope_dim = v->Int("text.qk_rope_head_dim", 2, 4096);
  c->q_lora_rank = v->Int("text.q_lora_rank", 32, kMaxDim);
  c->o_lora_rank = v->Int("text.o_lora_rank", 32, kMaxDim);
  c->o_groups = v->Int("text.o_groups", 1, 1024);
  c->rms_norm_eps = v->Real("text.rms_norm_eps", 1e-30, 1e-2);
  c->rope_theta = v->Real("text.rope_theta", kMinRopeTheta, 1e12);
  c->window = v->Int("text.sliding_window", 1, 1 << 16);
  if (v->Has("rope.original_max_position_embeddings") || v->Has("rope.factor")) {
    c->yarn.original_max_positions = v->Int("rope.original_max_position_embeddings", 0, kMaxPositions);
    c->yarn.factor = v->Real("rope.factor", 1.0, 1e6);
    c->yarn.beta_fast = v->RealOr("rope.beta_fast", 32.0, 1e-3, 1e6);
    c->yarn.beta_slow = v->RealOr("rope.beta_slow", 1.0, 1e-3, 1e6);
  }
  // The inference spelling states no limit: what YaRN stretches the trained length to is the model's.
  const int64_t stretched = static_cast<int64_t>(static_cast<double>(c->yarn.original_max_positions) * c->yarn.factor);
  const bool derivable = stretched > 0 && stretched <= kMaxPositions;
  c->max_positions = derivable ? v->IntOr("text.max_position_embeddings", stretched, 1, kMaxPositions)
                               : v->Int("text.max_position_embeddings", 1, kMaxPositions);
}

void ReadSources(ConfigValues* v, ModelConfig* c, int64_t num_stages) {
  const auto ratios = v->Ints("text.compress_ratios", 0, 2, static_cast<size_t>(2 * kMaxLayers));
  const int64_t count = static_cast<int64_t>(ratios.size());
  if (count == c->num_layers || count == c->num_layers + num_stages) {
    for (int64_t l = 0; l < count; ++l) {
      const int ratio = static_cast<int>(ratios[static_cast<size_t>(l)]);
      if (l < c->num_layers) c->ratios.push_back(ratio);
      if (l >= c->num_layers && ratio != 0) {
        v->Violation("compress_ratios: entry " + std::to_string(l) + " is a draft stage and must be 0");
      }
    }
  } else {
    v->Violation("compress_ratios: " + std::to_string(count) + " entries; must be num_hidden_layers, or that plus " +
                 "num_nextn_predict_layers");
  }
  c->kv_sources = v->Ints("text.kv_source_layer_ids", 0, kMaxLayers, static_cast<size_t>(kMaxLayers));
  c->index_sources = v->Ints("text.index_source_layer_ids", 0, kMaxLayers, static_cast<size_t>(kMaxLayers));
  if (c->kv_sources.empty() && c->index_sources.empty()) return;
  c->compress_rope_theta = v->Real("text.compress_rope_theta", kMinRopeTheta, 1e12);
  c->index_heads = v->Int("text.index_n_heads", 1, 1024);
  c->index_dim = v->Int("text.index_head_dim", 32, 4096);
  c->index_topk = v->Int("text.index_topk", 1, 1 << 20);
  c->candidate_source = v->Int("text.candidate_source_layer_id", -1, kMaxLayers);
  if (c->candidate_source < 0) return;
  c->candidate_blocks = v->Int("text.candidate_topk_blocks", 1, 1 << 20);
  c->candidate_block_size = v->Int("text.candidate_block_size", 1, 1 << 10);
}

void ReadExperts(ConfigValues* v, ModelConfig* c) {
  c->hc_mult = v->Int("text.hc_mult", 1, kMaxStreams);
  c->hc_iters = v->Int("text.hc_sinkhorn_iters", 1, 1000);
  c->hc_eps = v->Real("text.hc_eps", 1e-30, 1e-2);
  c->num_experts = v->Int("text.n_routed_experts", 1, 4096);
  c->num_shared_experts = v->Int("text.n_shared_experts", 1, 16);
  c->experts_per_token = v->Int("text.num_experts_per_tok", 1, kMaxExpertsPerToken);
  c->moe_intermediate_size = v->Int("text.moe_intermediate_size", 32, kMaxDim);
  c->routed_scaling_factor = v->Real("text.routed_scaling_factor", 1e-6, 1e6);
  c->norm_topk_prob = v->BoolOr("text.norm_topk_prob", true);
  c->gate_temperature = v->RealOr("text.gate_temp", 1.0, 1e-6, 1e6);
  c->swiglu_limit = v->RealOr("text.swiglu_limit", 0.0, 0.0, 1e6);
}

void ReadEngram(ConfigValues* v, EngramConfig* e) {
  e->layers = v->IntsOr("text.engram_layer_ids", 0, kMaxLayers, 16);
  if (e->layers.empty()) return;
  e->rows = v->Ints("text.engram_num_embeddings", 1, int64_t{1} << 42, 16);
  e->max_ngram = v->Int("text.engram_max_ngram_size", 2, 8);
  e->vocab_size = v->Int("text.engram_vocab_size", 2, int64_t{1} << 31);
  e->num_heads = v->Int("text.engram_n_heads", 1, 64);
  e->head_dim = v->Int("text.engram_head_dim", 32, 4096);
  e->pad_token_id = v->Int("text.engram_pad_token_id", 0, kMaxVocabSize);
  e->compressed_vocab_size = v->Int("text.engram_compressed_vocab_size", 1, kMaxVocabSize);
}

void ReadDspark(ConfigValues* v, DsparkConfig* d) {
  d->num_stages = v->IntOr("text.num_nextn_predict_layers", 0, 0, 16);
  if (d->num_stages == 0) return;
  d->block_size = v->Int("text.dspark_block_size", 1, 64);
  d->noise_token_id = v->Int("text.dspark_noise_token_id", 0, kMaxVocabSize);
  d->target_layers = v->Ints("text.dspark_target_layer_ids", 0, kMaxLayers, 64);
  d->markov_rank = v->Int("text.dspark_markov_rank", 1, kMaxDim);
  d->num_experts = v->Int("text.dspark_n_routed_experts", 1, 4096);
  d->experts_per_token = v->Int("text.dspark_num_experts_per_tok", 1, kMaxExpertsPerToken);
}

void ReadVision(ConfigValues* v, VisionConfig* w) {
  w->num_layers = v->IntOr("vision.num_hidden_layers", 0, 0, kMaxLayers);
  if (w->num_layers == 0) return;
  w->hidden_size = v->Int("vision.hidden_size", 4, kMaxDim);
  w->num_heads = v->Int("vision.num_attention_heads", 1, 1024);
  w->intermediate_size = v->Int("vision.intermediate_size", 1, kMaxDim);
  w->patch_size = v->Int("vision.patch_size", 1, 256);
  w->downsample_ratio = v->Int("vision.downsample_ratio", 1, 16);
  w->rope_theta = v->Real("vision.rope_theta", 1.0, 1e12);
  w->max_image_tokens = v->Int("vision.max_image_tokens", 4, 1 << 20);
  w->min_pixels = v->Int("vision.min_pixels", 0, 1 << 30);
}

}  // namespace

ModelConfig ParseModelConfig(std::string_view json, std::string_view source) {
  const Json root = ParseJson(json, source, {.max_bytes = kMaxConfigBytes, .max_depth = 8});
  ConfigValues values(root);
  ModelConfig config;
  if (values.violations().empty() || root.is_object()) {
    ReadFixedChoices(&values);
    config.bos_token_id = values.IntOr("top.bos_token_id", 0, 0, kMaxVocabSize);
    config.eos_token_id = values.IntOr("top.eos_token_id", 1, 0, kMaxVocabSize);
    config.pad_token_id = values.IntOr("top.pad_token_id", 2, 0, kMaxVocabSize);
    config.image_token_id = values.IntOr("top.image_token_id", -1, -1, kMaxVocabSize);
    ReadDspark(&values, &config.dspark);
    ReadAttention(&values, &config);
    ReadSources(&values, &config, config.dspark.num_stages);
    ReadExperts(&values, &config);
    ReadEngram(&values, &config.engram);
    ReadVision(&values, &config.vision);
    CheckRules(config, &values);
  }
  if (!values.violations().empty()) {
    std::string message(source);
    message += ": not a configuration Senko can run:";
    for (const std::string& violation : values.violations()) message += "\n  " + violation;
    throw Error(values.unsupported() ? ErrorCode::kUnsupported : ErrorCode::kInvalidArgument, message);
  }
  return config;
}

ModelConfig LoadModelConfig(const std::filesystem::path& path) {
  std::error_code ignored;
  const bool directory = std::filesystem::is_directory(path, ignored);
  const std::filesystem::path file = directory ? path / "config.json" : path;
  return ParseModelConfig(ReadTextFile(file, kMaxConfigBytes), file.string());
}

}  // namespace senko::config
