// Whole numbers on the command line.
#pragma once

#include <CLI/Validators.hpp>
#include <charconv>
#include <cstdint>
#include <string>
#include <system_error>

namespace senko::cli {

// Checks the text of a whole number before CLI11 converts it, which saturates and wraps.
inline CLI::Validator Whole(int64_t low, int64_t high) {
  return CLI::Validator(
      [low, high](std::string& text) -> std::string {
        int64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error == std::errc() && end == text.data() + text.size() && low <= value && value <= high) return {};
        return "must be a whole number from " + std::to_string(low) + " to " + std::to_string(high);
      },
      "");
}

}  // namespace senko::cli
