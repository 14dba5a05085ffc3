// Names for answers, items and calls.
#pragma once

#include <string>
#include <string_view>

namespace senko::api {

// `prefix` and 24 letters and digits, drawn from the system's entropy (142 bits): unique, and not to be guessed, which
// the memory of calls relies on where clients share a key. Thread-safe.
std::string NewId(std::string_view prefix);

}  // namespace senko::api
