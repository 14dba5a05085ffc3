#include "api/request_body.h"

#include "api/errors.h"

namespace senko::api {
namespace {

// Follows the text up to the first error and remembers the top-level key it lies under.
class LastKey : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return ++depth_ > 0; }
  bool end_object() override { return --depth_ >= 0; }
  bool start_array(std::size_t) override { return ++depth_ > 0; }
  bool end_array() override { return --depth_ >= 0; }
  bool key(string_t& key) override {
    if (depth_ == 1) name = key;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

  std::string name;

 private:
  int64_t depth_ = 0;
};

// Only what looks like a field's name may be repeated to the client.
std::string FieldAtFault(std::string_view body) {
  LastKey reader;
  Json::sax_parse(body.begin(), body.end(), &reader);
  const bool plain = reader.name.size() <= 64 &&
                     reader.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789") == std::string::npos;
  return plain ? reader.name : std::string();
}

}  // namespace

Json ParseBody(std::string_view body) {
  if (body.starts_with("\xEF\xBB\xBF")) {
    throw RequestError(ErrorCode::kInvalidArgument, "body: a byte order mark at byte 0 is not JSON");
  }
  JsonLimits limits;
  limits.max_bytes = kMaxBodyBytes;
  Json parsed;
  try {
    parsed = ParseJson(body, "body", limits);
  } catch (const Error& error) {
    std::string message = error.what();
    // The library's own words quote the input.
    for (const std::string_view quoting : {": [json.exception", " \""}) {
      message = message.substr(0, message.find(quoting));
    }
    throw RequestError(ErrorCode::kInvalidArgument, message, FieldAtFault(body));
  }
  if (!parsed.is_object()) throw RequestError(ErrorCode::kInvalidArgument, "the body must be a JSON object");
  return parsed;
}

}  // namespace senko::api
