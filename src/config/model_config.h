// What a DeepSeek-V4.1 `config.json` says (model.md section 1), under one set of names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace senko::config {

// What the operators compute. A configuration beyond one of these is refused when it is read, so that no operator
// meets it; the operators' own limits are held against them by a test of the ops room.
inline constexpr int64_t kMaxVocabSize = int64_t{1} << 19;  // sample: 2^44 per token must sum below 2^63
inline constexpr int64_t kMaxStreams = 8;                   // mhc: hc_mult
inline constexpr int64_t kMaxExpertsPerToken = 64;          // router, also of a draft stage
inline constexpr double kMinRopeTheta = 2.0;                // norm: RopeInvFreq takes a base above 1

// YaRN scaling of the compressed layers' rotary frequencies (model.md 3.3). Off when original_max_positions is 0.
struct Yarn {
  double factor = 1.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  int64_t original_max_positions = 0;
};

struct VisionConfig {
  int64_t num_layers = 0;  // 0: no vision tower in this checkpoint
  int64_t hidden_size = 0;
  int64_t num_heads = 0;
  int64_t intermediate_size = 0;
  int64_t patch_size = 0;
  int64_t downsample_ratio = 0;
  double rope_theta = 10000.0;
  int64_t max_image_tokens = 0;
  int64_t min_pixels = 0;
};

struct EngramConfig {
  std::vector<int64_t> layers;  // ascending; empty: no Engram
  std::vector<int64_t> rows;    // rows of each layer's table, as the file states them; checked against the primes
  int64_t max_ngram = 0;        // 4: n-grams of 2, 3 and 4 tokens
  int64_t vocab_size = 0;       // where the prime search starts (exclusive of vocab_size - 1)
  int64_t num_heads = 0;
  int64_t head_dim = 0;
  int64_t pad_token_id = 0;
  int64_t compressed_vocab_size = 0;
};

struct DsparkConfig {
  int64_t num_stages = 0;  // num_nextn_predict_layers; 0: no draft module
  int64_t block_size = 0;
  int64_t noise_token_id = 0;
  std::vector<int64_t> target_layers;
  int64_t markov_rank = 0;
  int64_t num_experts = 0;
  int64_t experts_per_token = 0;
};

struct ModelConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;  // D
  int64_t num_layers = 0;   // backbone only
  int64_t num_heads = 0;
  int64_t head_dim = 0;  // d: the shared latent and every query head
  int64_t rope_dim = 0;  // last rope_dim channels of a head are rotated
  int64_t q_lora_rank = 0;
  int64_t o_lora_rank = 0;
  int64_t o_groups = 0;
  int64_t max_positions = 0;
  double rms_norm_eps = 0;
  double rope_theta = 0;           // ratio-0 layers
  double compress_rope_theta = 0;  // ratio-1 and ratio-2 layers
  Yarn yarn;                       // ratio-1 and ratio-2 layers
  int64_t window = 0;              // sliding_window

  std::vector<int> ratios;             // compress_ratios of the backbone layers: 0, 1 or 2 (entry per `ratio` tokens)
  std::vector<int64_t> kv_sources;     // ascending
  std::vector<int64_t> index_sources;  // ascending, superset of kv_sources
  int64_t index_heads = 0;
  int64_t index_dim = 0;
  int64_t index_topk = 0;
  int64_t candidate_source = -1;  // -1: no candidate selection
  int64_t candidate_blocks = 0;
  int64_t candidate_block_size = 0;

  int64_t hc_mult = 0;  // residual streams
  int64_t hc_iters = 0;
  double hc_eps = 0;

  int64_t num_experts = 0;
  int64_t num_shared_experts = 0;
  int64_t experts_per_token = 0;
  int64_t moe_intermediate_size = 0;
  double routed_scaling_factor = 1.0;
  bool norm_topk_prob = true;
  double gate_temperature = 1.0;
  double swiglu_limit = 0;  // <= 0: no clamp

  EngramConfig engram;
  DsparkConfig dspark;
  VisionConfig vision;

  int64_t bos_token_id = 0;
  int64_t eos_token_id = 1;
  int64_t pad_token_id = 2;
  int64_t image_token_id = -1;  // -1: text only

  // Derived.
  int64_t mix_rows() const { return (2 + hc_mult) * hc_mult; }  // rows of hc_*_fn
  int64_t stream_dim() const { return hc_mult * hidden_size; }
  int64_t shared_intermediate() const { return moe_intermediate_size * num_shared_experts; }
  // The last KV source: the seam between the encoder and the decoder pass. -1 without KV sources.
  int64_t last_kv_source() const { return kv_sources.empty() ? -1 : kv_sources.back(); }
};

// Reads `config.json` text in either spelling (model.md 1.2). The key list is closed: an unknown key that could
// change the mathematics is refused by name, and every rule of model.md 11.11 and 9 ("constraints to keep") is
// enforced; all violations are listed in one message. `source` names the file in messages.
// Errors: kCorrupt (not JSON), kInvalidArgument (a rule is broken), kUnsupported (a value nothing here computes).
ModelConfig ParseModelConfig(std::string_view json, std::string_view source);

// Reads `path`, or `path`/config.json when it is a directory.
ModelConfig LoadModelConfig(const std::filesystem::path& path);

}  // namespace senko::config
