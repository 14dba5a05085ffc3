// System text and messages of Anthropic's API.
#pragma once

#include <vector>

#include "api/fields.h"
#include "text/chat.h"

namespace senko::api {

// `system` and `messages`. A user's message is taken apart into tool results and text, in their order; an assistant's
// message at the end is continued. Errors: RequestError naming the block's field; kUnsupported for pictures, documents
// and other blocks.
std::vector<text::Message> ReadAnthropicMessages(Fields* fields);

}  // namespace senko::api
