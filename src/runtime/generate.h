// Text generation for one sequence: chunked prefill, then one token at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/progress.h"
#include "runtime/executor.h"
#include "runtime/session.h"

namespace senko::runtime {

struct GenerateParams {
  int64_t max_tokens = 128;
  float temperature = 1.0f;  // 0: greedy
  int64_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  uint64_t seed = 0;
  std::vector<int32_t> end_tokens;  // end the text and are not part of it
  DecoderReplay decoder_replay = DecoderReplay::kTrim;
};

struct GenerateResult {
  std::vector<int32_t> tokens;
  std::string finish_reason;  // "stop" or "length"
  double prefill_seconds = 0;
  double decode_seconds = 0;  // of all tokens after the first
};

// Errors: kInvalidArgument when the prompt is empty, or it and max_tokens exceed the model's context.
void CheckContext(const config::ModelConfig& config, int64_t prompt_tokens, int64_t max_tokens);

// on_token(id) returns false to stop early (a stop string was found). Errors: as CheckContext; kInvalidArgument for
// ids outside the vocabulary, kResourceExhausted when KV pages run out, kNumerical when a logit is not finite.
GenerateResult Generate(Executor& executor, cache::SlotPool& slots, std::span<const int32_t> prompt,
                        const GenerateParams& params, const std::function<bool(int32_t)>& on_token,
                        const ProgressSink& progress);

}  // namespace senko::runtime
