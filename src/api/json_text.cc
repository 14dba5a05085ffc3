#include "api/json_text.h"

#include <array>
#include <charconv>

namespace senko::api {
namespace {

constexpr std::array<bool, 256> kNeedsEscape = [] {
  std::array<bool, 256> table{};
  for (size_t c = 0; c < 0x20; ++c) table[c] = true;
  table['"'] = table['\\'] = table[0x7F] = true;
  return table;
}();

void AppendEscape(char c, std::string* out) {
  switch (c) {
    case '"':
      out->append("\\\"");
      return;
    case '\\':
      out->append("\\\\");
      return;
    case '\n':
      out->append("\\n");
      return;
    case '\r':
      out->append("\\r");
      return;
    case '\t':
      out->append("\\t");
      return;
    default:
      out->append("\\u00");
      out->push_back("0123456789abcdef"[c >> 4]);
      out->push_back("0123456789abcdef"[c & 15]);
  }
}

template <typename T>
std::string& AppendChars(T value, std::string* out) {
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value);
  return out->append(buffer, result.ptr);
}

}  // namespace

std::string& AppendEscaped(std::string_view text, std::string* out) {
  size_t clean = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!kNeedsEscape[static_cast<unsigned char>(text[i])]) continue;
    out->append(text.substr(clean, i - clean));
    AppendEscape(text[i], out);
    clean = i + 1;
  }
  return out->append(text.substr(clean));
}

std::string& AppendString(std::string_view text, std::string* out) {
  out->push_back('"');
  AppendEscaped(text, out).push_back('"');
  return *out;
}

std::string& AppendNumber(int64_t value, std::string* out) { return AppendChars(value, out); }

std::string& AppendLogprob(float value, std::string* out) {
  return value > -9999 && value < 9999 ? AppendChars(value, out) : out->append("-9999.0");
}

std::string& AppendFloat(double value, std::string* out) { return AppendChars(value, out); }

}  // namespace senko::api
