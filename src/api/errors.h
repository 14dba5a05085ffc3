// What a client is told when something goes wrong: one table from error codes to HTTP.
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "api/exchange.h"
#include "base/error.h"

namespace senko::api {

// An error that knows the request's field at fault.
class RequestError : public Error {
 public:
  RequestError(ErrorCode code, const std::string& message, std::string param = {}, std::string api_code = {})
      : Error(code, message), param_(std::move(param)), api_code_(std::move(api_code)) {}
  const std::string& param() const { return param_; }        // "messages[2].role"; may be empty
  const std::string& api_code() const { return api_code_; }  // "context_length_exceeded"; may be empty

 private:
  std::string param_, api_code_;
};

inline constexpr std::string_view kContextLengthExceeded = "context_length_exceeded";

enum class ErrorStyle { kOpenAi, kAnthropic };

// Bounded: an error's body never grows with the request that caused it.
struct ErrorReply {
  int status = 500;
  std::string type;       // in the style's words: "invalid_request_error"
  std::string message;    // at most kMaxErrorMessageBytes of well-formed UTF-8
  std::string param;      // may be empty
  std::string code;       // may be empty
  int retry_after_s = 0;  // 0: no such header
};

inline constexpr size_t kMaxErrorMessageBytes = 1024;

// Errors of ours and the engine's become their row of the table; anything else is a 500 without its words.
ErrorReply DescribeError(const std::exception& error, ErrorStyle style);
// The same for a failure that is no exception's: the engine gave up on a running request.
ErrorReply DescribeFailure(ErrorCode code, std::string_view message, ErrorStyle style);

// {"error": {...}}, or Anthropic's {"type": "error", "error": {...}}. At most 4 kB, no line break.
std::string ErrorBody(const ErrorReply& reply, ErrorStyle style);
void ReplyError(Exchange& exchange, const ErrorReply& reply, ErrorStyle style);

}  // namespace senko::api
