#include "api/read_text.h"

#include <algorithm>

#include "api/context_length.h"

namespace senko::api {
namespace {

// `least`: the fewest tokens that the text can be; `encode` makes them, within its limits.
template <typename Encode>
std::vector<int32_t> Read(const Incoming& incoming, Reading reading, size_t least, const Encode& encode) {
  const EngineLimits& limits = incoming.context->limits();
  const bool answers = reading == Reading::kAnswer;
  const int64_t counted = answers ? std::max(2 * limits.max_model_len, kMostCounted) : MostTokens(limits);
  const int64_t most = answers ? limits.max_model_len : counted;  // whether an answer fits behind it is said later
  if (static_cast<int64_t>(least) > most) RefuseLength(limits, static_cast<int64_t>(least), answers ? -1 : most);
  text::EncodeLimits bounds;
  bounds.max_ids = static_cast<size_t>(counted);
  bounds.stop = [&incoming] { return incoming.exchange->gone(); };
  std::vector<int32_t> ids = encode(bounds);
  if (incoming.exchange->gone()) throw ClientGone();  // the ids may be a beginning
  if (ids.size() > bounds.max_ids) RefuseLength(limits, counted + 1, answers ? -1 : most);
  return ids;
}

}  // namespace

int64_t MostTokens(const EngineLimits& limits) { return std::max<int64_t>(2 * limits.max_model_len, 1 << 20); }

std::vector<int32_t> ReadText(const Incoming& incoming, std::string_view text, text::AddedTokens added,
                              Reading reading) {
  const text::Tokenizer& tokenizer = incoming.context->tokenizer();
  return Read(incoming, reading, tokenizer.LeastIds(text.size()),
              [&](const text::EncodeLimits& bounds) { return tokenizer.Encode(text, added, bounds); });
}

std::vector<int32_t> ReadPrompt(const Incoming& incoming, const text::Prompt& prompt, Reading reading) {
  const text::Tokenizer& tokenizer = incoming.context->tokenizer();
  return Read(incoming, reading, prompt.LeastIds(tokenizer),
              [&](const text::EncodeLimits& bounds) { return prompt.Encode(tokenizer, bounds); });
}

}  // namespace senko::api
