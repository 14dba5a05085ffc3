#include "api/json_text.h"

#include <charconv>

#include "text/python_json.h"

namespace senko::api {
namespace {

template <typename T>
std::string& AppendChars(T value, std::string* out) {
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value);
  return out->append(buffer, result.ptr);
}

}  // namespace

std::string& AppendString(std::string_view text, std::string* out) {
  out->push_back('"');
  text::AppendEscaped(text, out);
  out->push_back('"');
  return *out;
}

std::string& AppendNumber(int64_t value, std::string* out) { return AppendChars(value, out); }

std::string& AppendLogprob(float value, std::string* out) {
  return value > -9999 && value < 9999 ? AppendChars(value, out) : out->append("-9999.0");
}

std::string& AppendFloat(double value, std::string* out) { return AppendChars(value, out); }

}  // namespace senko::api
