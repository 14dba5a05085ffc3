// Requests of all kinds for the tests of the engine on a GPU.
#pragma once

#include <random>

#include "runtime/engine_test_client.h"

namespace senko::runtime {

// Few prompts, cut at different lengths, so that some begin like others; every sampling option now and then.
inline GenerationRequest RandomRequest(std::mt19937_64& random, const EngineLimits& limits, int64_t longest = 200) {
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
  const auto one_in = [&](uint64_t n) { return random() % n == 0; };
  const auto token = [&] { return static_cast<int32_t>(random() % static_cast<uint64_t>(limits.vocab_size)); };
  GenerationRequest request = Ask(1 + below(static_cast<uint64_t>(longest)), 1 + random() % 3, 1 + below(40), limits);
  SamplingOptions& s = request.sampling;
  s.seed = random();
  s.ignore_eos = !one_in(4);
  const float temperatures[] = {0.0f, 0.3f, 1.0f, 1.0f, 2.0f, 1000.0f};
  s.temperature = temperatures[below(6)];
  if (one_in(3)) s.top_k = 1 + below(50);
  if (one_in(3)) s.top_p = 0.5f + 0.01f * static_cast<float>(below(50));
  if (one_in(4)) s.min_p = 0.01f * static_cast<float>(below(20));
  if (one_in(4)) s.presence_penalty = 0.1f * static_cast<float>(below(40)) - 2;
  if (one_in(4)) s.frequency_penalty = 0.1f * static_cast<float>(below(40)) - 2;
  if (one_in(4)) s.repetition_penalty = 0.5f + 0.1f * static_cast<float>(below(15));
  for (int64_t i = one_in(3) ? below(20) : 0; i > 0; --i) {
    s.logit_bias.emplace_back(token(), 0.1f * static_cast<float>(below(200)) - 10);
  }
  for (int64_t i = one_in(3) ? below(30) : 0; i > 0; --i) s.bad_words.push_back({token()});
  for (int64_t i = one_in(6) ? below(300) : 0; i > 0; --i) s.bad_words.push_back({token(), token()});
  for (int64_t i = one_in(3) ? below(40) : 0; i > 0; --i) s.stop_token_ids.push_back(token());
  if (one_in(3)) s.min_tokens = below(static_cast<uint64_t>(s.max_tokens) + 1);
  const int logprobs[] = {-1, -1, 0, 3, kMaxLogprobs};
  s.logprobs = logprobs[below(5)];
  if (one_in(8)) s.prompt_logprobs = static_cast<int>(below(3));
  if (one_in(5)) request.n = 2 + static_cast<int>(below(4));
  return request;
}

}  // namespace senko::runtime
