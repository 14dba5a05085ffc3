// The token ids of a parrot and its tokenizer.json.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/model_config.h"

namespace senko::checkpoint {

// Control tokens of model.md 7.1, then one token per byte, then any number of tokens that encoding never
// produces: one per script step, each with an id of its own even when several stand for the same bytes. The
// rest of the ids are fillers.
class ParrotVocabulary {
 public:
  // Error kInvalidArgument when vocab_size cannot hold control and byte tokens.
  explicit ParrotVocabulary(const config::ModelConfig& config);

  // The id of a control token's text, or of a single byte; nullopt for anything else.
  std::optional<int64_t> Control(std::string_view text) const;
  int64_t Byte(unsigned char byte) const { return byte_ids_[byte]; }
  // A new id that decodes to `bytes`; -1 when all ids are taken.
  int64_t AddStep(std::string_view bytes);

  std::string TokenizerJson() const;

 private:
  int64_t vocab_size_;
  std::map<std::string, int64_t, std::less<>> control_;
  std::vector<std::string> spelling_;  // [vocab_size]; empty: free
  std::vector<int64_t> byte_ids_;
  int64_t next_free_ = 0;
  uint64_t steps_ = 0;
};

}  // namespace senko::checkpoint
