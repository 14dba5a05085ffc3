#include "config/config_rules.h"

#include <algorithm>
#include <string>

#include "config/engram_hash.h"

namespace senko::config {
namespace {

// More expert matrices than any model of this family has; keeps the tensor list of a hostile file small.
constexpr int64_t kMaxExpertsInAll = 131072;

std::string S(int64_t value) { return std::to_string(value); }

bool StrictlyAscending(const std::vector<int64_t>& values) {
  return std::adjacent_find(values.begin(), values.end(), std::greater_equal<>()) == values.end();
}

bool Contains(const std::vector<int64_t>& values, int64_t value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

class Rules {
 public:
  Rules(const ModelConfig& config, ConfigValues* values) : c_(config), values_(values) {}

  void CheckDimensions() {
    const auto blocks = [this](int64_t value, const char* name) {
      Need(value % 32 == 0, std::string(name) + " = " + S(value) + ": must be a multiple of the quantisation block 32");
    };
    blocks(c_.hidden_size, "hidden_size");
    blocks(c_.head_dim, "head_dim");
    blocks(c_.q_lora_rank, "q_lora_rank");
    blocks(c_.o_lora_rank, "o_lora_rank");
    blocks(c_.moe_intermediate_size, "moe_intermediate_size");
    if (!c_.kv_sources.empty()) blocks(c_.index_dim, "index_head_dim");
    Need(c_.rope_dim % 2 == 0 && c_.rope_dim <= c_.head_dim,
         "qk_rope_head_dim = " + S(c_.rope_dim) + ": must be even and at most head_dim");
    if (!c_.kv_sources.empty()) {
      Need(c_.rope_dim <= c_.index_dim, "qk_rope_head_dim = " + S(c_.rope_dim) + ": must be at most index_head_dim");
    }
    Need(c_.o_groups == 0 || c_.num_heads % c_.o_groups == 0,
         "num_attention_heads = " + S(c_.num_heads) + ": must be a multiple of o_groups = " + S(c_.o_groups));
    Need(c_.experts_per_token <= c_.num_experts, "num_experts_per_tok: must be at most n_routed_experts");
    Need(c_.num_layers * c_.num_experts + c_.dspark.num_stages * c_.dspark.num_experts <= kMaxExpertsInAll,
         "num_hidden_layers x n_routed_experts: more than " + S(kMaxExpertsInAll) + " experts in all");
    for (const auto& [name, id] : {std::pair{"bos_token_id", c_.bos_token_id},
                                   {"eos_token_id", c_.eos_token_id},
                                   {"pad_token_id", c_.pad_token_id},
                                   {"image_token_id", c_.image_token_id}}) {
      Need(id < c_.vocab_size, std::string(name) + " = " + S(id) + ": must be below vocab_size = " + S(c_.vocab_size));
    }
  }

  void CheckSources() {
    const std::vector<int64_t>& kv = c_.kv_sources;
    const std::vector<int64_t>& index = c_.index_sources;
    bool usable = true;
    for (const auto& [name, list] : {std::pair{"kv_source_layer_ids", &kv}, {"index_source_layer_ids", &index}}) {
      const bool ascending = StrictlyAscending(*list);
      const bool inside = list->empty() || list->back() < c_.num_layers;
      Need(ascending && inside, std::string(name) + ": must be strictly ascending layers below num_hidden_layers");
      usable = usable && ascending && inside;
    }
    if (!usable) return;
    for (int64_t layer : kv) {
      Need(Contains(index, layer), "kv_source_layer_ids: layer " + S(layer) + " is not an index source");
    }
    for (int64_t layer : index) {
      Need(!kv.empty() && layer >= kv.front(),
           "index_source_layer_ids: layer " + S(layer) + " comes before the first KV source");
    }
    CheckRatios();
    CheckCandidates();
  }

  void CheckRatios() {
    int expected = 0;
    for (int64_t layer = 0; layer < c_.num_layers; ++layer) {
      const int ratio = c_.ratios[static_cast<size_t>(layer)];
      if (Contains(c_.kv_sources, layer)) {
        Need(ratio == 1 || ratio == 2, "compress_ratios: KV source layer " + S(layer) + " must have ratio 1 or 2");
        expected = ratio;
      } else if (ratio != expected) {
        Need(false, "compress_ratios: layer " + S(layer) + " has ratio " + S(ratio) +
                        (expected == 0 ? ", but no KV source comes before it"
                                       : ", but its KV source has ratio " + S(expected)));
      }
    }
  }

  void CheckCandidates() {
    if (c_.candidate_source < 0) return;
    if (c_.kv_sources.empty() || c_.candidate_source != c_.kv_sources.back()) {
      Need(false, "candidate_source_layer_id = " + S(c_.candidate_source) +
                      ": must be the last KV source (its blocks index that source's entries), or -1");
    }
    const int64_t reach = c_.candidate_blocks * c_.candidate_block_size - (c_.candidate_block_size - 1);
    Need(reach >= c_.index_topk, "candidate_topk_blocks x candidate_block_size: reaches " + S(reach) +
                                     " entries, fewer than index_topk = " + S(c_.index_topk));
  }

  void CheckEngram() {
    const EngramConfig& e = c_.engram;
    if (e.layers.empty()) return;
    Need(StrictlyAscending(e.layers) && e.layers.back() < c_.num_layers,
         "engram_layer_ids: must be strictly ascending layers below num_hidden_layers");
    Need(e.head_dim % 32 == 0, "engram_head_dim = " + S(e.head_dim) + ": must be a multiple of 32");
    Need(e.pad_token_id < c_.vocab_size, "engram_pad_token_id = " + S(e.pad_token_id) + ": must be below vocab_size");
    Need(e.compressed_vocab_size <= c_.vocab_size, "engram_compressed_vocab_size: must be at most vocab_size");
    Need(e.rows.size() == e.layers.size(), "engram_num_embeddings: must have one number per engram_layer_ids entry");
    if (!values_->violations().empty()) return;  // the walk below needs sane numbers
    const std::vector<EngramLayerHash> hashes = MakeEngramHash(e);
    for (size_t i = 0; i < hashes.size(); ++i) {
      Need(hashes[i].rows == e.rows[i], "engram_num_embeddings: " + S(e.rows[i]) + " rows for layer " + S(e.layers[i]) +
                                            ", but the primes of its hash sum to " + S(hashes[i].rows));
    }
  }

  void CheckDspark() {
    const DsparkConfig& d = c_.dspark;
    if (d.num_stages == 0) return;
    Need(!d.target_layers.empty() && StrictlyAscending(d.target_layers) && d.target_layers.back() < c_.num_layers,
         "dspark_target_layer_ids: must be strictly ascending layers below num_hidden_layers");
    Need(d.noise_token_id < c_.vocab_size, "dspark_noise_token_id: must be below vocab_size");
    Need(d.experts_per_token <= d.num_experts, "dspark_num_experts_per_tok: must be at most dspark_n_routed_experts");
  }

  void CheckVision() {
    const VisionConfig& v = c_.vision;
    if (v.num_layers == 0) return;
    Need(c_.image_token_id >= 0, "image_token_id: missing, but vision_config describes a vision tower");
    Need(v.num_heads == 0 || (v.hidden_size % v.num_heads == 0 && v.hidden_size / v.num_heads % 4 == 0),
         "vision_config.hidden_size: must be num_attention_heads times a multiple of 4");
  }

 private:
  void Need(bool holds, const std::string& message) {
    if (!holds) values_->Violation(message);
  }

  const ModelConfig& c_;
  ConfigValues* values_;
};

}  // namespace

void CheckRules(const ModelConfig& config, ConfigValues* values) {
  Rules rules(config, values);
  rules.CheckDimensions();
  if (static_cast<int64_t>(config.ratios.size()) == config.num_layers) rules.CheckSources();
  rules.CheckDspark();
  rules.CheckVision();
  rules.CheckEngram();
}

}  // namespace senko::config
