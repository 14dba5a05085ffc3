// A checkpoint that recites given scripts (README.md, "parrot"): the tool for testing everything above the
// model.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/write_checkpoint.h"
#include "config/model_config.h"

namespace senko::checkpoint {

struct ParrotPlan {
  std::vector<int64_t> next;  // [vocab_size]: the token that follows each token
  std::string tokenizer_json;
};

// Reads a script file. `source` names it in messages.
// Errors: kCorrupt (not JSON), kInvalidArgument naming script and token; kResourceExhausted (more steps than
// ids).
ParrotPlan PlanParrot(const config::ModelConfig& config, std::string_view script, std::string_view source);

// Weights under which argmax(logits) after token t is next[t], whatever came before: every sublayer adds
// zero, streams pass the mixing unchanged, embedding row t and head row next[t] share a vector of random
// signs, and other head rows are zero or nearly orthogonal to it. All other tensors are random, so every
// kernel has work. Error kInvalidArgument when hidden_size is too small to keep the vectors apart.
TensorFiller ParrotFiller(const config::ModelConfig& config, const ParrotPlan& plan, uint64_t seed);

}  // namespace senko::checkpoint
