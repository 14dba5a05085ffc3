// Collects what is wrong with a checkpoint, so that one message can list everything.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/error.h"

namespace senko::checkpoint {

// Keeps the first kShown messages of each kind and counts the rest: the message stays bounded whatever the
// file holds.
class ProblemList {
 public:
  static constexpr size_t kShown = 50;

  // `kind` is a heading such as "missing tensors"; problems of one kind are listed together.
  void Add(std::string_view kind, const std::string& message);
  bool empty() const { return kinds_.empty(); }
  uint64_t count(std::string_view kind) const;

  // "<source>: <headline>:" and one indented line per problem.
  std::string Describe(std::string_view source, std::string_view headline) const;
  // Throws Error(code, Describe(...)) unless empty.
  void ThrowIfAny(ErrorCode code, std::string_view source, std::string_view headline) const;

 private:
  struct Kind {
    uint64_t count = 0;
    std::string lines;
  };
  std::map<std::string, Kind, std::less<>> kinds_;
};

// `name` cut to a length fit for a message, control bytes replaced.
std::string Printable(std::string_view name);

// "[1280, 5120]".
template <typename Shape>
std::string ShapeText(const Shape& shape) {
  std::string text = "[";
  for (const auto& dim : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(dim);
  return text + "]";
}

}  // namespace senko::checkpoint
