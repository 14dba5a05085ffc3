// The fields of a request that steer sampling and where its text ends. Names and ranges as in vLLM.
#pragma once

#include <string>
#include <vector>

#include "api/fields.h"
#include "senko/senko.h"
#include "text/tokenizer.h"

namespace senko::api {

class ApiContext;

// How one choice's tokens become text.
struct TextOptions {
  std::vector<std::string> stops;  // strings that end the content
  bool include_stop = false;       // the stop string, or the stop token's text, is shown
  bool skip_special = true;        // special tokens have no text
  int64_t min_tokens = 0;          // before it no stop string counts
  bool ignore_eos = false;
  bool one_call = false;  // the answer ends with its first tool call
  bool logprobs = false;  // pieces carry their tokens
};

inline constexpr size_t kMaxStops = 64;
inline constexpr size_t kMaxStopBytes = 4096;
inline constexpr size_t kMaxTokenLists = 1024;  // logit_bias, stop_token_ids, bad_words

// temperature, top_p, top_k, min_p, seed.
void ReadDrawing(Fields* fields, SamplingOptions* sampling);
// The above, n, priority, penalties, logit_bias, bad_words, stop_token_ids, min_tokens, ignore_eos, stop,
// include_stop_str_in_output, skip_special_tokens. Not: max_tokens and logprobs, which differ from route to route.
void ReadSampling(Fields* fields, const ApiContext& context, GenerationRequest* request, TextOptions* text);
// A string or a list of strings, none empty.
std::vector<std::string> ReadStops(Fields* fields, std::string_view name);

// What is harmless in every OpenAI route, and what would change its answers.
void AcceptMetadata(Fields* fields);
void RefuseUnsupported(Fields* fields);

}  // namespace senko::api
