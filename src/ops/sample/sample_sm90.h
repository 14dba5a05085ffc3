// Processing and drawing on Hopper, many rows in one launch: the CPU's tokens, bit for bit (sample.h, processors.h and
// draw_scheme.h are the definition).
#pragma once

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>

#include "ops/sample/logprobs.h"
#include "ops/sample/sample.h"

namespace senko::ops {

// Eight blocks keep a row in shared memory.
inline constexpr int64_t kMaxVocabSm90 = 393216;

// One draw. Plain data that one pinned copy brings; pointers are device memory.
struct SampleJobSm90 {
  int32_t row = 0;  // of logits
  float temperature = 0;
  int64_t top_k = 0;
  float top_p = 1;
  double least_exponent = -HUGE_VAL;  // draw_scheme.h's LeastExponent(min_p): the host's logarithm, so the CPU's bits
  uint64_t seed = 0;
  uint64_t choice = 0;
  uint64_t position = 0;
  // Processors (processors.h). Lists lie in SampleSm90Params::bias_ids etc. from the offsets on.
  int32_t bias_begin = 0, bias_count = 0;
  int32_t banned_begin = 0, banned_count = 0;
  const uint32_t* allowed = nullptr;  // [ceil(vocab / 32)] or null
  float repetition = 1;
  float frequency = 0;
  float presence = 0;
  // The sequence's answer so far: how often each token stands in it, at most 65,535 times, and the prompt's distinct
  // tokens as bits (repetition penalty only). Null when no penalty asks.
  uint16_t* counts = nullptr;           // [vocab]
  const uint32_t* in_prompt = nullptr;  // [ceil(vocab / 32)]
  // Tokens that count as well, behind those of `counts`: drafts that this row runs ahead by. Ids below zero are passed
  // over.
  int32_t extra_begin = 0, extra_count = 0;
  // The draw adds its token to `counts`. Off for jobs of one sequence in the same launch, which run side by side: what
  // stands of them is then for CountTokensSm90.
  bool adds_token = true;
  int32_t top_logprobs = -1;  // -1: no log-probabilities; else the token's own and so many of the likeliest
};

struct SampleResultSm90 {
  int32_t token = -1;  // or kRowNotFinite, kNothingAllowed
  // Written with a token >= 0 and top_logprobs >= 0: of the row before processors (logprobs.h). The sum is
  // LogprobsCpu's integer; the logarithm is CUDA's, within one place of the host's, so a value may be the neighbouring
  // float32.
  LogprobEntry own;
  LogprobEntry top[kMaxTopLogprobs];  // the first min(top_logprobs, vocab)
};

struct SampleSm90Params {
  const int32_t* num_jobs = nullptr;  // device
  int64_t max_jobs = 0;
  const SampleJobSm90* jobs = nullptr;  // device
  int64_t vocab = 0;                    // 1 .. kMaxVocabSm90
  const float* logits = nullptr;        // [rows, vocab], read only: several jobs may share a row
  // Device; read only where a job names them.
  const int32_t* bias_ids = nullptr;
  const float* bias_values = nullptr;
  const int32_t* banned_ids = nullptr;
  const int32_t* extra_ids = nullptr;
  int32_t* tokens = nullptr;            // device [max_jobs]: what the next step is fed
  SampleResultSm90* results = nullptr;  // device [max_jobs]
};
// Needs no scratch.
void SampleSm90(const SampleSm90Params& p, cudaStream_t stream);

// tables[i][ids[i]] += 1 for i < *num, saturating; pairs with an id below zero are passed over. Tables may repeat.
struct CountTokensSm90Params {
  const int32_t* num = nullptr;  // device
  int64_t max = 0;
  uint16_t* const* tables = nullptr;  // device [max] of device tables
  const int32_t* ids = nullptr;       // device [max]
};
void CountTokensSm90(const CountTokensSm90Params& p, cudaStream_t stream);

}  // namespace senko::ops
