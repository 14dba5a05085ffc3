// Small groups of fields that several routes share.
#pragma once

#include "api/context_length.h"
#include "api/fields.h"

namespace senko::api {

struct StreamFields {
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
};
// stream, stream_options.
StreamFields ReadStream(Fields* fields);

// max_tokens and max_completion_tokens: the same thing by two names.
TokenBudget ReadChatBudget(Fields* fields);

// modalities and verbosity: only what changes nothing.
void ReadTextOnly(Fields* fields);

// min_tokens against the resolved max_tokens.
void CheckMinTokens(const SamplingOptions& sampling);

}  // namespace senko::api
