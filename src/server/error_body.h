// Error bodies for what goes wrong in HTTP itself, in the words of the API whose path it is. Texts are ours: nothing of
// the request is repeated in them.
#pragma once

#include <string>
#include <string_view>

#include "api/errors.h"

namespace senko::server {

// Anthropic's for /v1/messages and what lies below, OpenAI's for everything else, known or not.
api::ErrorStyle StyleOfPath(std::string_view path);

// "rate_limit_error", ...
std::string_view ErrorType(int status, api::ErrorStyle style);

std::string HttpErrorBody(std::string_view path, int status, std::string_view message, std::string_view code);

// The same as the last event of a stream, as it is sent.
std::string HttpErrorEvents(std::string_view path, int status, std::string_view message, std::string_view code);

}  // namespace senko::server
