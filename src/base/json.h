// JSON from strangers: bounded depth, keys and values, duplicate keys refused, every message names the source and the
// place.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace senko {

using Json = nlohmann::ordered_json;

struct JsonLimits {
  size_t max_bytes = size_t{64} << 20;
  int max_depth = 64;
  // Of one object. Json finds a key by looking at every one before it, so this bounds what a look-up costs.
  size_t max_keys = 4096;
  // Of all: a value takes up to about 100 bytes of memory, whereas "1," is two of text. A prompt of a million token ids
  // fits, and so does the largest tokenizer.
  size_t max_values = size_t{1} << 21;
};

// What ParseJson throws.
class JsonError : public Error {
 public:
  JsonError(ErrorCode code, const std::string& message, std::string member)
      : Error(code, message), member_(std::move(member)) {}
  // The outermost object's member that was being read; empty when there was none.
  const std::string& member() const { return member_; }

 private:
  std::string member_;
};

// Parses all of `text`. `source` names the file or request in messages ("config.json").
// Errors: JsonError kCorrupt with the byte offset for bad syntax, bad UTF-8, depth, duplicate keys, trailing bytes;
// kResourceExhausted when longer than max_bytes, for an object of more than max_keys keys, or for more than max_values
// values. Takes time in proportion to the text, whatever is in it.
Json ParseJson(std::string_view text, std::string_view source, const JsonLimits& limits = {});

// Serialises without ever throwing on bad UTF-8 (invalid bytes become U+FFFD). indent < 0 is one line.
std::string DumpJson(const Json& value, int indent = -1);

}  // namespace senko
