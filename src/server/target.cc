#include "server/target.h"

#include <algorithm>

namespace senko::server {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = static_cast<char>(c | 0x20);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool IsControl(char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7F; }

}  // namespace

bool SplitTarget(std::string_view target, std::string* path, std::string* query) {
  path->clear();
  query->clear();
  if (!std::all_of(target.begin(), target.end(), [](char c) { return c > ' ' && c <= '~'; })) return false;
  if (target == "*") {
    *path = "*";
    return true;
  }
  if (!target.starts_with('/')) {
    const size_t scheme = target.find("://");
    if (scheme == std::string_view::npos || (target.substr(0, scheme) != "http" && target.substr(0, scheme) != "https"))
      return false;
    target.remove_prefix(scheme + 3);
    target.remove_prefix(std::min(target.find_first_of("/?"), target.size()));
    if (!target.starts_with('/')) path->push_back('/');
  }
  target = target.substr(0, target.find('#'));
  const size_t mark = target.find('?');
  if (mark != std::string_view::npos) *query = target.substr(mark + 1);
  const std::string_view escaped = target.substr(0, mark);
  for (size_t i = 0; i < escaped.size(); ++i) {
    char c = escaped[i];
    if (c == '%') {
      const int high = i + 2 < escaped.size() ? HexDigit(escaped[i + 1]) : -1;
      const int low = i + 2 < escaped.size() ? HexDigit(escaped[i + 2]) : -1;
      if (high < 0 || low < 0) return false;
      c = static_cast<char>(high * 16 + low);
      if (IsControl(c)) return false;
      i += 2;
    }
    path->push_back(c);
  }
  return true;
}

}  // namespace senko::server
