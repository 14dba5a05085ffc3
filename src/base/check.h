// SENKO_CHECK(condition): a broken invariant of our own. Throws std::logic_error, which the thread's edge reports
// as an internal fault (exit code 1), never as the user's error.
#pragma once

#include <stdexcept>
#include <string>

namespace senko {

[[noreturn]] inline void CheckFailed(const char* file, int line, const char* expression) {
  throw std::logic_error(std::string(file) + ":" + std::to_string(line) + ": internal check failed: " + expression);
}

}  // namespace senko

#define SENKO_CHECK(condition)                              \
  do {                                                      \
    if (!(condition)) [[unlikely]]                          \
      ::senko::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)
