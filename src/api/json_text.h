// Writing JSON straight into a string: what is sent per token never becomes a tree.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace senko::api {

// All append and return `out`, so that a line of JSON reads in one piece. Text must be well-formed UTF-8.

// Quoted and escaped.
std::string& AppendString(std::string_view text, std::string* out);
std::string& AppendNumber(int64_t value, std::string* out);
// The shortest digits that read back. JSON has no infinities: a value beyond +-9999 or NaN becomes -9999.0, as OpenAI
// writes a logprob that is none.
std::string& AppendLogprob(float value, std::string* out);
std::string& AppendFloat(double value, std::string* out);  // finite

}  // namespace senko::api
