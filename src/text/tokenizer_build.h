// A tokenizer's compiled form. Internal to the room.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/splitter.h"
#include "text/tokenizer_file.h"

namespace senko::text {

inline constexpr size_t kMaxStages = 32;

struct CompiledTokenizer {
  std::vector<AddedToken> added;                           // in the file's order
  std::vector<std::string> spellings;                      // by id
  std::vector<std::string> bytes;                          // by id
  std::vector<uint8_t> special;                            // by id, 0 or 1
  std::unordered_map<std::string_view, int32_t> added_id;  // spelling -> id; views into `added`
  std::unordered_map<std::string_view, int32_t>
      word_id;  // bytes -> id of the tokens of the BPE model; views into `bytes`
  std::array<int32_t, 256> byte_id{};
  std::unique_ptr<MergeTable> merges;
  std::unique_ptr<AddedTokenMatcher> first_pass;   // added tokens with normalized = false
  std::unique_ptr<AddedTokenMatcher> second_pass;  // the others, in what the first pass left
  std::vector<std::unique_ptr<Splitter>> stages;   // at most kMaxStages
  bool ignore_merges = false;
  size_t longest_bytes = 0;  // of text that one id can stand for; SIZE_MAX where an added token takes spaces around it
  // By id: whether merging the token's own bytes gives that token. Found out on first use (0 unknown, 1 yes,
  // 2 no); every thread finds the same, so relaxed atomics do.
  mutable std::vector<std::atomic<uint8_t>> whole;
};

// Checks that ids are dense, every byte has a token, merges are made of tokens, and compiles.
// Errors: kCorrupt, kUnsupported.
std::unique_ptr<CompiledTokenizer> CompileTokenizer(TokenizerFile file, std::string_view source);

}  // namespace senko::text
