// A second way to compute what a sequence under replay must say, for tests: dense, without caches. Row by row and layer
// by layer from the definition (model.md 3 and 5), every operator's `*_reference`, windows as explicit lists of
// positions. Nothing of the model room's passes is used, only its weights.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "config/decoder_replay.h"
#include "model/model.h"

namespace senko::runtime {

struct DenseInput {
  std::span<const int32_t> tokens;  // the prompt, and what was generated
  int64_t prompt_tokens = 0;
  int64_t hit = 0;                   // H; 0: none
  std::span<const uint8_t> adopted;  // the hit's pages, one after the other, as they lay in memory
  bool decoder_trims = true;         // rows before the prompt's last window skip the decoder pass
};

using DenseRows = std::map<int64_t, std::vector<float>>;  // logits by position

struct DenseOutput {
  DenseRows logits;            // of every row that runs the decoder pass
  std::vector<uint8_t> pages;  // of [0, tokens), the adopted ones first: what a later hit adopts
};

// Text only.
DenseOutput RunDense(const model::Model& model, const DenseInput& input);

}  // namespace senko::runtime
