// What changes one row of logits before a draw: biases, bans and penalties.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

namespace senko::ops {

// A token of the answer so far.
struct OutputCount {
  int32_t token = 0;
  int32_t count = 0;       // at least 1
  bool in_prompt = false;  // also in ProcessorParams::prompt
};

// In order: biases are added, what is not allowed or is banned becomes -infinity, then per token the penalties of
// vLLM's definition. Each operation is rounded to float32, so every backend gives the same bits; what no list names
// keeps its own. Ids are in [0, vocab).
struct ProcessorParams {
  int64_t vocab = 0;
  float* logits = nullptr;                          // [vocab], in place
  std::span<const std::pair<int32_t, float>> bias;  // a token named twice gets both
  const uint32_t* allowed = nullptr;                // bit v mod 32 of word v / 32: v may be drawn; null: all may
  std::span<const int32_t> banned;                  // may repeat
  float repetition = 1;                             // > 0; divides positive logits, multiplies negative ones, once each
  float frequency = 0;                              // times the count, subtracted
  float presence = 0;                               // subtracted
  std::span<const int32_t> prompt;                  // distinct; only `repetition` is for them
  std::span<const OutputCount> output;              // distinct
};

// Costs by the lists' lengths, not by the vocabulary, but for `allowed`. Returns how many finite logits became
// -infinity, for SampleParams::banned: a row that holds another one is refused by the draw, so that a ban hides no
// fault.
int64_t ProcessReference(const ProcessorParams& p);
int64_t ProcessCpu(const ProcessorParams& p);

}  // namespace senko::ops
