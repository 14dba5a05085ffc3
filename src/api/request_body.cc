#include "api/request_body.h"

#include "api/errors.h"

namespace senko::api {
namespace {

// Only what looks like a field's name may be repeated to the client.
std::string FieldAtFault(const std::string& name) {
  const bool plain =
      name.size() <= 64 && name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789") == std::string::npos;
  return plain ? name : std::string();
}

}  // namespace

Json ParseBody(std::string_view body) {
  if (body.starts_with("\xEF\xBB\xBF")) {
    throw RequestError(ErrorCode::kInvalidArgument, "body: a byte order mark at byte 0 is not JSON");
  }
  JsonLimits limits;
  limits.max_bytes = body.size();
  Json parsed;
  try {
    parsed = ParseJson(body, "body", limits);
  } catch (const JsonError& error) {
    std::string message = error.what();
    // The library's own words quote the input.
    for (const std::string_view quoting : {": [json.exception", " \""}) {
      message = message.substr(0, message.find(quoting));
    }
    throw RequestError(ErrorCode::kInvalidArgument, message, FieldAtFault(error.member()));
  }
  if (!parsed.is_object()) throw RequestError(ErrorCode::kInvalidArgument, "the body must be a JSON object");
  return parsed;
}

}  // namespace senko::api
