// A request's body as JSON.
#pragma once

#include <string_view>

#include "base/json.h"

namespace senko::api {

inline constexpr size_t kMaxBodyBytes = size_t{64} << 20;

// One JSON object within the limits of base/json.h. Lone surrogates, ill-formed UTF-8, a byte order mark, numbers that
// no double holds and duplicate keys are errors. Errors: RequestError kInvalidArgument that says where, without
// repeating what the body holds; `param` is the top-level field being read there, if any.
Json ParseBody(std::string_view body);

}  // namespace senko::api
