#include <string>

#include "base/error.h"
#include "ops/mhc/mhc_sm90.h"
#include "ops/router/router_sm90.h"
#include "ops/sample/sample_sm90.h"
#include "ops/select/select_sm90.h"
#include "runtime/cuda/device_weights.h"

namespace senko::runtime {

void CheckDeviceLimits(const config::ModelConfig& config, bool rounds) {
  std::string faults;
  const auto fault = [&](const char* field, int64_t value, const std::string& rule) {
    faults += std::string(faults.empty() ? "" : "; ") + field + " " + std::to_string(value) + ": must be " + rule;
  };
  const auto multiple = [&](const char* field, int64_t value, int64_t of) {
    if (value % of != 0) fault(field, value, "a multiple of " + std::to_string(of));
  };
  const auto at_most = [&](const char* field, int64_t value, int64_t most) {
    if (value > most) fault(field, value, "at most " + std::to_string(most));
  };
  if (!rounds) {
    at_most("hc_mult", config.hc_mult, ops::kMhcStreams);
  } else if (config.hc_mult != ops::kMhcStreams) {
    fault("hc_mult", config.hc_mult, std::to_string(ops::kMhcStreams));
  }
  multiple("hidden_size", config.hidden_size, 64);
  at_most("hidden_size", config.hidden_size, 5120);
  multiple("q_lora_rank", config.q_lora_rank, 64);
  multiple("o_lora_rank", config.o_lora_rank, 64);
  multiple("head_dim", config.head_dim, 64);
  at_most("num_attention_heads", config.num_heads, 64);
  multiple("moe_intermediate_size", config.moe_intermediate_size, 64);
  at_most("n_routed_experts", config.num_experts, ops::kMaxExpertsSm90);
  at_most("num_experts_per_tok", config.experts_per_token, ops::kMaxTopkSm90);
  if (!config.index_sources.empty()) {
    at_most("index_n_heads", config.index_heads, ops::kMaxIndexHeadsSm90);
    at_most("index_topk", config.index_topk, ops::kMaxSelectTopkSm90);
    if (config.index_dim != 32 && config.index_dim != 64 && config.index_dim != 128) {
      fault("index_head_dim", config.index_dim, "32, 64 or 128");
    }
  }
  if (config.candidate_source >= 0) {
    at_most("candidate_block_size", config.candidate_block_size, 32);
    if ((config.candidate_block_size & (config.candidate_block_size - 1)) != 0) {
      fault("candidate_block_size", config.candidate_block_size, "a power of two");
    }
  }
  at_most("vocab_size", config.vocab_size, ops::kMaxVocabSm90);
  if (!config.engram.layers.empty()) {
    multiple("(engram_max_ngram_size - 1) * engram_n_heads * engram_head_dim",
             (config.engram.max_ngram - 1) * config.engram.num_heads * config.engram.head_dim, 64);
  }
  if (!faults.empty()) throw Error(ErrorCode::kUnsupported, "--device cuda: config.json: " + faults);
}

}  // namespace senko::runtime
