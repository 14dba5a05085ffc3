#include "server/error_body.h"

namespace senko::server {

api::ErrorStyle StyleOfPath(std::string_view path) {
  return path.starts_with("/v1/messages") ? api::ErrorStyle::kAnthropic : api::ErrorStyle::kOpenAi;
}

std::string_view ErrorType(int status, api::ErrorStyle style) {
  const bool anthropic = style == api::ErrorStyle::kAnthropic;
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 413:
      return anthropic ? "request_too_large" : "invalid_request_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return anthropic ? "overloaded_error" : "server_error";
    default:
      break;
  }
  if (status >= 500) return anthropic ? "api_error" : "server_error";
  return "invalid_request_error";
}

std::string HttpErrorBody(std::string_view path, int status, std::string_view message, std::string_view code) {
  const api::ErrorStyle style = StyleOfPath(path);
  api::ErrorReply reply;
  reply.status = status;
  reply.type = ErrorType(status, style);
  reply.message = message.substr(0, api::kMaxErrorMessageBytes);
  reply.code = code;
  return api::ErrorBody(reply, style);
}

std::string HttpErrorEvents(std::string_view path, int status, std::string_view message, std::string_view code) {
  const bool named = StyleOfPath(path) == api::ErrorStyle::kAnthropic || path.starts_with("/v1/responses");
  const std::string data = "data: " + HttpErrorBody(path, status, message, code) + "\n\n";
  return named ? "event: error\n" + data : data + "data: [DONE]\n\n";
}

}  // namespace senko::server
