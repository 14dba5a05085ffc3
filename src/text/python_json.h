// JSON text as Python's json.dumps(value, ensure_ascii=False) writes it: what the model saw in training.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace senko::text {

// ", " and ": " as separators, keys in their order, floats as repr() does (1e+16, 1e-05). Integers beyond 64
// bits are floats already. Errors: kInvalidArgument when nested deeper than 128.
std::string PythonJson(const Json& value);

// Appends `text` with JSON string escapes, without the quotes. Any bytes; only '"', '\' and controls change,
// so a text may be escaped piece by piece.
void AppendEscaped(std::string_view text, std::string* out);
// The same with quotes.
std::string PythonJsonString(std::string_view text);

}  // namespace senko::text
