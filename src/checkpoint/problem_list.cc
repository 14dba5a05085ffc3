#include "checkpoint/problem_list.h"

namespace senko::checkpoint {

void ProblemList::Add(std::string_view kind, const std::string& message) {
  const auto it = kinds_.try_emplace(std::string(kind)).first;
  if (++it->second.count <= kShown) it->second.lines += "\n    " + message;
}

uint64_t ProblemList::count(std::string_view kind) const {
  const auto it = kinds_.find(kind);
  return it == kinds_.end() ? 0 : it->second.count;
}

std::string ProblemList::Describe(std::string_view source, std::string_view headline) const {
  std::string text(source);
  text += ": " + std::string(headline) + ":";
  for (const auto& [name, kind] : kinds_) {
    text += "\n  " + name + " (" + std::to_string(kind.count) + "):" + kind.lines;
    if (kind.count > kShown) text += "\n    ... and " + std::to_string(kind.count - kShown) + " more";
  }
  return text;
}

void ProblemList::ThrowIfAny(ErrorCode code, std::string_view source, std::string_view headline) const {
  if (!empty()) throw Error(code, Describe(source, headline));
}

std::string Printable(std::string_view name) {
  std::string text(name.substr(0, 120));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  return name.size() > text.size() ? text + "..." : text;
}

}  // namespace senko::checkpoint
