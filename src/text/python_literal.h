// Reads a string constant out of a Python script without running it. Internal to the room.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace senko::text {

// The value of the first assignment `name = "..."` (or `name: str = (...)`) that starts a line of `script`:
// one or more adjacent string literals, plain or raw, of any quoting. nullopt if nothing is assigned to
// `name`. Errors: kCorrupt naming `source` and the byte, for anything but such literals (f-strings, bytes,
// expressions).
std::optional<std::string> PythonStringConstant(std::string_view script, std::string_view name,
                                                std::string_view source);

}  // namespace senko::text
