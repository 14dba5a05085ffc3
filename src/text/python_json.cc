#include "text/python_json.h"

#include <charconv>
#include <cmath>

#include "base/error.h"

namespace senko::text {
namespace {

constexpr int kMaxDepth = 128;  // bounds the recursion of Write

// repr() of a Python float: the shortest digits that read back, plain for exponents in [-4, 16).
std::string PythonFloat(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  const std::string_view all(buffer, static_cast<size_t>(end - buffer));
  const size_t e = all.find('e');
  const std::string_view sign = all[0] == '-' ? "-" : "";
  std::string digits;
  for (const char c : all.substr(sign.size(), e - sign.size())) {
    if (c != '.') digits.push_back(c);
  }
  const std::string_view exponent_text = all.substr(all[e + 1] == '+' ? e + 2 : e + 1);
  int exponent = 0;
  std::from_chars(exponent_text.data(), exponent_text.data() + exponent_text.size(), exponent);

  std::string out(sign);
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out.append(".").append(digits, 1);
    out += exponent < 0 ? "e-" : "e+";
    const int magnitude = std::abs(exponent);
    if (magnitude < 10) out += '0';
    return out += std::to_string(magnitude);
  }
  if (exponent < 0) return out.append("0.").append(static_cast<size_t>(-exponent - 1), '0').append(digits);
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return out.append(digits).append(whole - digits.size(), '0').append(".0");
  return out.append(digits, 0, whole).append(".").append(digits, whole);
}

void Write(const Json& value, int depth, std::string* out) {
  if (depth > kMaxDepth) {
    throw Error(ErrorCode::kInvalidArgument, "JSON nested deeper than " + std::to_string(kMaxDepth));
  }
  switch (value.type()) {
    case Json::value_t::string:
      out->append(PythonJsonString(value.get_ref<const std::string&>()));
      return;
    case Json::value_t::number_float:
      out->append(PythonFloat(value.get<double>()));
      return;
    case Json::value_t::array: {
      out->push_back('[');
      bool first = true;
      for (const Json& item : value) {
        if (!first) out->append(", ");
        first = false;
        Write(item, depth + 1, out);
      }
      out->push_back(']');
      return;
    }
    case Json::value_t::object: {
      out->push_back('{');
      bool first = true;
      for (const auto& [key, item] : value.items()) {
        if (!first) out->append(", ");
        first = false;
        out->append(PythonJsonString(key)).append(": ");
        Write(item, depth + 1, out);
      }
      out->push_back('}');
      return;
    }
    default:
      out->append(value.dump());  // null, booleans and integers are written alike everywhere
  }
}

}  // namespace

// Stretches that need no escape are appended whole: this is what every event of a stream goes through.
void AppendEscaped(std::string_view text, std::string* out) {
  size_t clean = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    out->append(text, clean, i - clean);
    clean = i + 1;
    constexpr std::string_view kNamed = "\"\\\n\r\t\b\f", kNames = "\"\\nrtbf";
    out->push_back('\\');
    if (const size_t at = kNamed.find(text[i]); at != std::string_view::npos) {
      out->push_back(kNames[at]);
    } else {
      out->append("u00").push_back("01"[c >> 4]);
      out->push_back("0123456789abcdef"[c & 15]);
    }
  }
  out->append(text, clean);
}

std::string PythonJsonString(std::string_view text) {
  std::string out(1, '"');
  AppendEscaped(text, &out);
  out.push_back('"');
  return out;
}

std::string PythonJson(const Json& value) {
  std::string out;
  Write(value, 0, &out);
  return out;
}

}  // namespace senko::text
