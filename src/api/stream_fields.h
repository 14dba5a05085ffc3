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
void ReadVerbosity(Fields* fields);
// {"type": "text"}. The template would show another format to the model, but nothing here forces it: refused, so that
// nobody relies on it.
void ReadTextFormat(Fields* fields, std::string_view name);

}  // namespace senko::api
