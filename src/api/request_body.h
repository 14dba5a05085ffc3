// A request's body as JSON.
#pragma once

#include <string_view>

#include "base/json.h"

namespace senko::api {

// One JSON object within the limits of base/json.h, but for its length, which was limited where it came in
// (--max-body-bytes). Lone surrogates, ill-formed UTF-8, a byte order mark, numbers that no double holds and duplicate
// keys are errors. Errors: RequestError kInvalidArgument that says where, without repeating what the body holds;
// `param` is the top-level field being read there, if any.
Json ParseBody(std::string_view body);

}  // namespace senko::api
