// What a step runs: the model's view of a StepPlan (architecture.md sections 1 and 3).
#pragma once

#include <cstdint>

namespace senko::model {

// One sequence's span of tokens in a step. Positions are absolute. Arrays are the caller's.
struct SequenceInput {
  const int32_t* tokens = nullptr;  // ids of positions [tokens_begin, end): the Engram look-back reads before `begin`
  int64_t begin = 0;                // rows [begin, end) run
  int64_t end = 0;
  const int32_t* pages = nullptr;  // covers positions [0, end)
  uint8_t* slot = nullptr;

  // Encoder-side replay (model.md 5.1): windows of layers up to the last KV source start here.
  int64_t replay_start = 0;
  // Entries of groups that end below are cached already and are not written again.
  int64_t write_floor = 0;
  // Decoder-side replay (model.md 5.2, 11.6): rows from here on run the decoder pass; `end` keeps none.
  int64_t keep_begin = 0;
  // Windows of layers after the last KV source start here.
  int64_t tail_start = 0;
  // At most begin - (max_ngram - 1), or 0.
  int64_t tokens_begin = 0;
};

}  // namespace senko::model
