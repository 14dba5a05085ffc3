#include "text/python_literal.h"

#include "base/error.h"
#include "text/utf8.h"

namespace senko::text {
namespace {

class Reader {
 public:
  Reader(std::string_view script, std::string_view source, size_t at) : script_(script), source_(source), at_(at) {}

  // From just behind the name. False if this is not an assignment.
  bool Assignment(std::string* value) {
    SkipBlanks(false);
    if (Take(":")) {
      while (at_ < script_.size() && script_[at_] != '=' && script_[at_] != '\n') ++at_;
    }
    if (!Take("=") || Peek("=")) return false;
    SkipBlanks(false);
    const bool bracketed = Take("(");
    SkipBlanks(bracketed);
    if (!Literal(value)) Fail("not a string constant");
    for (SkipBlanks(bracketed); Literal(value); SkipBlanks(bracketed)) {
    }
    if (bracketed && !Take(")")) Fail("not a string constant: expected ')'");
    if (!bracketed && at_ < script_.size() && script_[at_] != '\n') Fail("something follows the string constant");
    return true;
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    throw Error(ErrorCode::kCorrupt, std::string(source_) + ": byte " + std::to_string(at_) + ": " + what);
  }
  bool Peek(std::string_view text) const { return script_.substr(at_, text.size()) == text; }
  bool Take(std::string_view text) {
    if (!Peek(text)) return false;
    at_ += text.size();
    return true;
  }
  void SkipBlanks(bool lines) {
    while (at_ < script_.size()) {
      const char c = script_[at_];
      if (c == '#') {
        while (at_ < script_.size() && script_[at_] != '\n') ++at_;
      } else if (c == ' ' || c == '\t' || c == '\r' || (lines && c == '\n')) {
        ++at_;
      } else {
        break;
      }
    }
  }
  // Appends one literal. False if none starts here.
  bool Literal(std::string* value) {
    const size_t start = at_;
    bool raw = false;
    while (at_ < script_.size() && (script_[at_] | 0x20) >= 'a' && (script_[at_] | 0x20) <= 'z') {
      const char prefix = static_cast<char>(script_[at_] | 0x20);
      raw |= prefix == 'r';
      if (prefix != 'r' && prefix != 'u') Fail("only plain and raw string literals are understood");
      ++at_;
    }
    if (at_ >= script_.size() || (script_[at_] != '"' && script_[at_] != '\'')) {
      if (at_ != start) Fail("not a string constant");
      return false;
    }
    const std::string quote(Peek(std::string(3, script_[at_])) ? 3 : 1, script_[at_]);
    at_ += quote.size();
    while (!Take(quote)) {
      if (at_ >= script_.size() || (quote.size() == 1 && script_[at_] == '\n')) Fail("the string never ends");
      if (script_[at_] != '\\') {
        value->push_back(script_[at_++]);
      } else if (raw) {
        value->append(script_.substr(at_, 2));
        at_ += at_ + 1 < script_.size() ? 2 : 1;
      } else {
        Escape(value);
      }
    }
    return true;
  }
  void Escape(std::string* value) {
    ++at_;
    if (at_ >= script_.size()) Fail("the string never ends");
    const char c = script_[at_++];
    switch (c) {
      case '\n':
        return;
      case '\\':
      case '\'':
      case '"':
        value->push_back(c);
        return;
      case 'n':
        value->push_back('\n');
        return;
      case 't':
        value->push_back('\t');
        return;
      case 'r':
        value->push_back('\r');
        return;
      case 'x':
        return Hex(2, value);
      case 'u':
        return Hex(4, value);
      case 'U':
        return Hex(8, value);
      default:
        Fail("an escape that is not understood");
    }
  }
  void Hex(int digits, std::string* value) {
    char32_t code = 0;
    for (int i = 0; i < digits; ++i) {
      const char c = at_ < script_.size() ? script_[at_] : ' ';
      const int digit = c >= '0' && c <= '9'                     ? c - '0'
                        : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
                                                                 : -1;
      if (digit < 0) Fail("an escape with too few digits");
      code = code << 4 | static_cast<char32_t>(digit);
      ++at_;
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) Fail("an escape that is no character");
    AppendUtf8(code, value);
  }

  std::string_view script_, source_;
  size_t at_;
};

bool IsNameByte(char c) { return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '_'; }

}  // namespace

std::optional<std::string> PythonStringConstant(std::string_view script, std::string_view name,
                                                std::string_view source) {
  for (size_t at = script.find(name); at != std::string_view::npos; at = script.find(name, at + 1)) {
    const size_t end = at + name.size();
    if ((at > 0 && script[at - 1] != '\n') || (end < script.size() && IsNameByte(script[end]))) continue;
    std::string value;
    if (Reader(script, source, end).Assignment(&value)) return value;
  }
  return std::nullopt;
}

}  // namespace senko::text
