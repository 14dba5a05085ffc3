// The input of a response: items to messages.
#pragma once

#include <vector>

#include "api/fields.h"
#include "text/chat.h"

namespace senko::api {

// A string, or items: messages, function calls, their outputs, reasoning. Neighbouring items of an assistant's turn
// (reasoning, then a message, then calls) become one message. Errors: RequestError naming the item's field;
// kUnsupported for items of other types.
std::vector<text::Message> ReadResponsesInput(Fields* fields);

}  // namespace senko::api
